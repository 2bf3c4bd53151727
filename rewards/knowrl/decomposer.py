"""Choose what takes a text apart into facts: a language model, or rules without any model."""

from typing import TYPE_CHECKING

from knowledge.facts.claims import Claims, Keep, admissible
from knowledge.facts.matcher import by_rules
from knowledge.facts.model_decomposer import by_model
from rewards.api.service import ModelService
from rewards.registry import Options, Resource

if TYPE_CHECKING:
    from rewards.api.client import ApiClient

KNOWN_TEXT = (  # text, question, subject
    "Paris is the capital of France, and it lies on the Seine.",
    "What is the capital of France?",
    "Paris",
)


class RuleDecomposer(Resource):
    """Takes texts apart by rules."""

    async def decompose(self, text: str, question: str = "", subject: str = "") -> Claims:
        return await by_rules(text, question, subject)


class ModelDecomposer(ModelService):
    """Lets a model list the facts of a text. keep: chooses those that count."""

    def __init__(self, client: "ApiClient", max_tokens: int, keep: Keep = admissible):
        super().__init__(client, max_tokens)
        self.decompose = by_model(client.complete, max_tokens, keep)

    def check(self) -> str:
        claims = self.wait_for(by_model(self.client.check, self.max_tokens)(*KNOWN_TEXT))
        if not claims.facts:
            raise self.useless(f"it should list the facts of {KNOWN_TEXT[0]!r}; {claims.reason or 'it found none'}")
        return f"of {KNOWN_TEXT[0]!r} it makes: {'; '.join(claim.fact for claim in claims.facts)}"


def build_decomposer(options: Options, keep: Keep = admissible) -> RuleDecomposer | ModelDecomposer:
    """Build the configured decomposer: `decomposer: api` asks a model, `decomposer: rules` none."""
    if options["decomposer"] == "rules":
        return RuleDecomposer()
    from rewards.api.client import client_for  # the SDK takes a second to import

    return ModelDecomposer(client_for("decomposer", options), options["decomposer_max_tokens"], keep)
