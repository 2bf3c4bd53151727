"""python -m bench.train_step [--peer peft|none] [--models smollm2] [--prompts 4] [--group 8] [--tokens 64]

How fast is one training pass on fixed completions (forward, loss, backward to a LoRA adapter with r=16 on all
projections), compared with transformers + PEFT on padded rows?
  equal      all completions have one length, so the peer pads nothing
  variable   completion lengths from a log-normal distribution, prompts of different lengths

Both sides have the same weights, adapter, dtype, tokens, old log-probs and advantages, and call the same loss function.
The peer gets rows with prompts padded on the left and completions on the right, as TRL builds them. It computes logits
for completion positions only, keeps all activations, and takes the batch in one pass. Ours packs the batch by the
trainer's own budget. PEFT's adapter has the dtype of the weights, which is faster than its default, float32.

Checked in the same run: the mean log-prob of both sides (tests/grpo/test_lora.py compares every gradient). The floor is
that of forward and backward over the packed tokens. The last line of stdout is JSON.
"""

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch

from bench import ceilings, models, peers, steps
from bench.record import Results, parse
from bench.whole_steps import StepShape
from bench.workload import KINDS, Work, padded, random_rows
from grpo.algorithm.interfaces import Settings
from grpo.algorithm.loss import policy_loss
from grpo.algorithm.loss_weights import set_loss_weights
from grpo.algorithm.meter import TokenMeter
from grpo.algorithm.schema import Completion, Group, PackedBatch, Prompt, completions_of
from grpo.algorithm.step import Grpo
from grpo.engine.model.adapter import save_adapter, trained_adapter
from grpo.engine.model.decoder import Decoder

TARGET = 1.8  # times faster than the peer
SIZES = {
    "smoke": {"models": ["tiny"], "tokens": 16},
    "cpu": {"models": ["smollm2"], "prompts": 4, "group": 8, "tokens": 64},  # group: completions per prompt
    "cuda": {"models": ["1.5b"], "tokens": 512},
}


def make_groups(work: Work, vocab: int) -> list[Group]:
    """Make random completions of the work's lengths, with advantages that sum to zero in each group."""
    rows = iter(random_rows(work.lengths, vocab))
    advantages = torch.linspace(-1, 1, work.group).tolist()
    return [
        Group(
            Prompt(number, "", prompt_ids, {}),
            [Completion.given(list(next(rows)), "length", advantage=advantage) for advantage in advantages],
        )
        for number, prompt_ids in enumerate(work.prompts)
    ]


def our_pass(learner: Grpo, batches: list[PackedBatch]) -> float:
    """Run forward, loss and backward over all micro-batches; return the mean log-prob."""
    learner.optimizer.discard_gradient()
    found = [learner.train_batch(batch, TokenMeter()) for batch in batches]
    return float(torch.cat(found).mean())


class Padded:
    """The peer: transformers' model with PEFT's adapter, and the same completions as padded rows."""

    def __init__(self, model, groups: list[Group], settings: Settings):
        self.model = model
        self.settings = settings
        device = model.device
        completions = list(completions_of(groups))
        prompts = [group.prompt.ids for group in groups for _ in group.completions]
        prompt_NS, prompt_mask_NS = padded(prompts, "left", device)
        completion_NS, completion_mask_NS = padded([one.ids for one in completions], "right", device)
        self.ids_NS = torch.cat([prompt_NS, completion_NS], 1)
        self.mask_NS = torch.cat([prompt_mask_NS, completion_mask_NS], 1)
        self.is_scored_NS = completion_mask_NS.bool()
        self.width = completion_NS.shape[1]  # the last positions, which hold the completions
        rows_C, _ = self.is_scored_NS.nonzero(as_tuple=True)
        advantage_C = torch.tensor([one.advantage for one in completions], device=device)[rows_C]
        weight_C = torch.full_like(advantage_C, 1 / len(rows_C))
        self.batch = SimpleNamespace(completion_C=rows_C, advantage_C=advantage_C, weight_C=weight_C, old_logp_C=None)

    def run(self) -> float:
        """Run forward, loss and backward over all rows at once; return the mean log-prob."""
        self.model.zero_grad(set_to_none=True)
        output = self.model(self.ids_NS, attention_mask=self.mask_NS, logits_to_keep=self.width + 1, use_cache=False)
        logits_NSV = output.logits[:, :-1].float()
        targets_NS = self.ids_NS[:, -self.width :]
        chosen_NS = logits_NSV.gather(2, targets_NS[..., None])[..., 0]
        logp_NS = chosen_NS - logits_NSV.logsumexp(-1)
        logp_C = logp_NS[self.is_scored_NS]
        loss, _ = policy_loss(self.batch, logp_C, self.settings)  # the old log-probs are the new ones
        loss.backward()
        return float(logp_C.detach().mean())


def peft_model(path: Path, model: Decoder):
    """Return transformers' model of a checkpoint with our adapter, as PEFT computes it."""
    from peft import PeftModel

    build = model.build
    adapter = path.parent / "adapter"
    save_adapter(trained_adapter(model, None, str(path)), adapter, lora_alpha=build.lora.alpha)
    base = peers.transformers_model(path, build)
    return PeftModel.from_pretrained(base, adapter, is_trainable=True, autocast_adapter_dtype=False)


def measure(path: Path, work: Work, name: str, results: Results) -> None:
    """Record the timed case, and the agreement of the log-probs."""
    options = results.options
    keys = StepShape("", len(work.prompts), work.group, max(work.lengths), TARGET, beta=0.0).keys(options)
    with steps.trainer(path, **keys) as trainer:
        learner = trainer.learner
        model = models.fill_adapters(trainer.model)
        groups = make_groups(work, model.config.vocab_size)
        set_loss_weights(groups, learner.settings, learner.replicas)
        batches = learner.make_batches(groups)
        sides = {"ours": partial(our_pass, learner, batches)}
        if options.peer == "peft":
            sides["peft"] = Padded(peft_model(path, model), groups, learner.settings).run
        for side, run in sides.items():
            results.check({f"{name}, {side}: mean log-prob": run()})
        packed = sum(batch.layout.num_tokens for batch in batches)
        tokens = sum(work.lengths)
        flops = 2 * ceilings.forward_flops(model.config, packed, tokens)  # forward, and back to the inputs
        floor = ceilings.floor_seconds(flops, model.build.dtype, results.peak)
        results.compare(name, sides, tokens, floor, target=TARGET, packed_tokens=packed)


def main(argv: list[str] | None = None) -> dict:
    options = parse(
        "train_step",
        __doc__,
        argv,
        SIZES,
        {"peft": ("peft", "transformers"), "none": ()},
        choices={"models": models.SHAPES},
    )
    results = Results("train_step", options, ceilings.peaks)
    batch = options.prompts * options.group
    for name in options.models:
        vocab = models.SHAPES[name]["vocab_size"]
        with models.temporary_model(name, options) as path:
            for kind, make in KINDS.items():
                work = make(batch, options.tokens, vocab, options.group)
                measure(path, work, f"{name}, {kind} lengths", results)
    return results.finish()


if __name__ == "__main__":
    main()
