"""A language model that rewards ask, as a run looks after it: checked before the first step, counted, closed."""

from collections.abc import Awaitable
from typing import TYPE_CHECKING, TypeVar

from grpo.base.errors import PREFLIGHT, UserError
from rewards.registry import Counts, Resource, Rows, Say

if TYPE_CHECKING:
    from rewards.api.client import ApiClient

Answer = TypeVar("Answer")


class ModelService(Resource):
    """A model behind an API. A subclass asks it, and has a `check` that asks about something known.

    max_tokens: of a reply.
    """

    def __init__(self, client: "ApiClient", max_tokens: int):
        self.client, self.max_tokens = client, max_tokens

    @property
    def clients(self) -> list["ApiClient"]:
        return [self.client]

    def check(self) -> str:
        """Ask about something known, and describe the answer. Raise UserError (exit 3) if the model is of no use."""
        raise NotImplementedError

    def prepare(self, rows: Rows, say: Say) -> None:
        self.check()

    def counts(self) -> Counts:
        return {name: (number, 0) for name, number in self.client.metrics().items()}

    def close(self) -> None:
        self.client.close()

    def wait_for(self, asking: Awaitable[Answer]) -> Answer:
        """Wait for what asks this model, outside of an event loop."""
        return self.client.run_sync(asking)

    def useless(self, why: str) -> UserError:
        """Return the error that the model cannot do this work."""
        name = self.client.endpoint.name
        return UserError(
            f"the model {self.client.endpoint.model} does not work as a {name}",
            why,
            f"set {name}_model to a model that follows instructions, or {name}_max_tokens to leave it more room",
            PREFLIGHT,
        )
