"""python -m bench.train_step [--peer peft|none] [--models 31m] [--prompts 4] [--group 8] [--tokens 128]

How fast is one training pass (forward, loss, backward to the LoRA adapter, r=16 on all projections) on fixed
completions, against transformers + PEFT on padded rows?
  equal      all completions of one length: the peer pads nothing
  variable   completion lengths from a log-normal distribution, prompts of different lengths

Same weights, adapter, dtype, tokens, old log-probs and advantages; both sides call the same loss function. The peer
gets rows with the prompt padded on the left, completions on the right, as TRL builds them, computes logits for
completion positions only, keeps all activations, and takes the whole batch in one pass; ours packs it by the trainer's
own budget. In bfloat16 PEFT runs twice, with its default float32 adapter and with a bfloat16 one; the ratio is against
the faster.

Checked in the same run, in float32: every adapter gradient (on a GPU of the first group), the largest difference
relative to the largest entry.
Ceiling: the matrix products of forward and backward alone, over the tokens that the packed row has.
The last line of stdout is JSON.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from bench import ceilings, models, sampler, timing
from grpo.attention.select import packed_attention
from grpo.logprobs import token_logprobs
from grpo.loss import LossConfig, policy_loss
from grpo.model.adapter import save_adapter, trained_adapter
from grpo.model.decoder import Decoder
from grpo.model.lora import LoraLinear
from grpo.packing import Denominators, pack, plan, row_weights, with_advantages
from grpo.run import memory
from grpo.schema import Completion, Group, PackedBatch, Prompt

RANK = 16


def make_groups(work: sampler.Work, vocab: int) -> list[Group]:
    """Random completions of the work's lengths; advantages that sum to zero in each group."""
    generator, lengths, groups = torch.Generator().manual_seed(0), iter(work.lengths), []
    for number, prompt in enumerate(work.prompts):
        completions = []
        for _ in range(work.group):
            ids = torch.randint(4, vocab, (next(lengths),), generator=generator).tolist()
            completions.append(Completion(ids, [0.0] * len(ids), [float("-inf")] * len(ids), "length"))
        advantages = torch.randn(work.group, generator=generator)
        groups.append(
            Group(Prompt(number, "", prompt, {}), completions, advantages=(advantages - advantages.mean()).tolist())
        )
    return groups


def make_batches(groups: list[Group], model: Decoder, device: str) -> list[PackedBatch]:
    """Micro-batches as the trainer makes them, with every token's weight (dapo)."""
    lengths = [len(completion.ids) for group in groups for completion in group.completions]
    weights = row_weights(
        groups, "dapo", Denominators(len(lengths), sum(lengths)), max(lengths), len(lengths), 1, False
    )
    longest = max(len(group.prompt.ids) for group in groups) + max(lengths)
    budget = memory.choose_budget(model, longest, memory.free_bytes(torch.device(device)))
    model.recompute = budget.recompute
    return [
        with_advantages(pack(groups, rows, weights, device), groups) for rows in plan(groups, weights, budget.tokens)
    ]


def our_pass(model: Decoder, batches: list[PackedBatch], chunk: int) -> None:
    for batch in batches:
        hidden_TD = model(batch.ids_T, batch.positions_T, packed_attention(model, batch.layout))
        logp_C, _ = token_logprobs(
            hidden_TD.index_select(0, batch.source_C), model.head(), batch.targets_C, 1.0, None, chunk
        )
        loss, _ = policy_loss(
            logp_C, logp_C.detach(), None, batch.advantage_C, batch.weight_C, batch.row_C, LossConfig()
        )
        loss.backward()


class Padded:
    """The peer: transformers' model with PEFT's adapter, and the same completions as padded rows."""

    def __init__(
        self, path: Path, adapter: Path, groups: list[Group], dtype: torch.dtype, adapter_float32: bool, device: str
    ):
        from peft import PeftModel

        base = models.theirs(path, dtype, device)
        self.model = PeftModel.from_pretrained(base, adapter, is_trainable=True, autocast_adapter_dtype=adapter_float32)
        rows = [
            (group.prompt.ids, completion.ids, advantage)
            for group in groups
            for completion, advantage in zip(group.completions, group.advantages, strict=True)
        ]
        left, right = (max(len(row[side]) for row in rows) for side in (0, 1))
        filled = [(left - len(prompt), right - len(completion)) for prompt, completion, _ in rows]
        self.ids = torch.tensor(
            [
                [0] * before + [*prompt, *completion] + [0] * after
                for (prompt, completion, _), (before, after) in zip(rows, filled, strict=True)
            ],
            device=device,
        )
        self.mask = torch.tensor(
            [[0] * before + [1] * (left + right - before - after) + [0] * after for before, after in filled],
            device=device,
        )
        self.used = self.mask[:, left:].bool()
        self.width = right
        self.row_C = torch.arange(len(rows), device=device)[:, None].expand(-1, right)[self.used]
        self.advantage_C = torch.tensor([advantage for *_, advantage in rows], device=device)[self.row_C]
        self.weight_C = torch.full_like(self.advantage_C, 1 / len(self.row_C))

    def run(self) -> None:
        logits = (
            self.model(self.ids, attention_mask=self.mask, logits_to_keep=self.width + 1, use_cache=False)
            .logits[:, :-1]
            .float()
        )
        targets = self.ids[:, -self.width :, None]
        logp_C = (logits.gather(2, targets)[..., 0] - logits.logsumexp(-1))[self.used]
        loss, _ = policy_loss(logp_C, logp_C.detach(), None, self.advantage_C, self.weight_C, self.row_C, LossConfig())
        loss.backward()

    def gradients(self) -> dict[str, torch.Tensor]:
        """By projection and half, such as layers.0.mlp.up_proj.lora_A."""
        return {
            name.partition("model.model.model.")[2].partition(".default")[0]: parameter.grad
            for name, parameter in self.model.named_parameters()
            if parameter.grad is not None
        }


def our_gradients(model: Decoder) -> Iterator[tuple[str, torch.Tensor]]:
    for number, block in enumerate(model.blocks):
        for linear in (module for module in block.modules() if isinstance(module, LoraLinear)):
            for part, rows in linear.rank_slices.items():
                where = f"layers.{number}.{'self_attn' if part[0] in 'qkvo' else 'mlp'}.{part}"
                yield f"{where}.lora_A", linear.A.master.grad[rows]
                yield f"{where}.lora_B", linear.B[part].grad


def largest_difference(model: Decoder, peer: Padded) -> float:
    wanted, differences = peer.gradients(), []
    for name, gradient in our_gradients(model):
        scale = wanted[name].abs().max()
        differences.append(
            float((gradient - wanted[name]).abs().max() / scale) if scale else float(gradient.abs().max())
        )
    assert len(differences) == len(wanted)
    return max(differences)


def agreement(path: Path, adapter: Path, groups: list[Group], device: str) -> float:
    """`largest_difference` of a pass over these groups in float32, from an adapter that is written for all sides."""
    exact = models.ours(path, torch.float32, device, RANK)
    save_adapter(trained_adapter(exact, None, str(path)), adapter, lora_alpha=exact.build.lora.alpha)
    peer = Padded(path, adapter, groups, torch.float32, True, device)
    our_pass(exact, make_batches(groups, exact, device), memory.LOGITS_ROWS[device])
    peer.run()
    return largest_difference(exact, peer)


def measure(path: Path, work: sampler.Work, name: str, options) -> tuple[dict, dict]:
    """The timed case, and the gradients' agreement in float32."""
    dtype, device, chunk = getattr(torch, options.dtype), options.device, memory.LOGITS_ROWS[options.device]
    model = models.ours(path, dtype, device, RANK)
    groups = make_groups(work, model.config.vocab_size)
    batches = make_batches(groups, model, device)
    sides = {"ours": lambda: clear_and_run(model, lambda: our_pass(model, batches, chunk))}
    checks, peers = {}, {}
    if options.peer == "peft":
        adapter = path.parent / "adapter"
        checks[f"{name}: relative gradient difference, float32"] = agreement(
            path, adapter, groups if device == "cpu" else groups[:1], device
        )
        variants = (
            {"peft": True}
            if dtype == torch.float32
            else {"peft, float32 adapter": True, "peft, bfloat16 adapter": False}
        )
        peers = {side: Padded(path, adapter, groups, dtype, float32, device) for side, float32 in variants.items()}
        sides |= {side: lambda padded=padded: clear_and_run(padded.model, padded.run) for side, padded in peers.items()}
    case = {"name": name, **timing.compare(timing.interleave(sides, options.repeats, device)), "target": 1.8}
    rows, scored = sum(batch.layout.num_tokens for batch in batches), sum(work.lengths)
    forward = ceilings.products(model.config, rows, scored)
    seconds = case["seconds"]["ours"]["median"]
    case |= {
        "tokens": scored,
        "packed_tokens": rows,
        "padded_tokens": next(iter(peers.values())).ids.numel() if peers else None,
        "tokens_per_s": scored / seconds,
        "ceiling_share": ceilings.products_seconds([*forward, *ceilings.backward(forward)], dtype, device, 3) / seconds,
    }
    timing.show(case)
    return case, checks


def clear_and_run(model: torch.nn.Module, run) -> None:
    model.zero_grad(set_to_none=True)
    run()


def main(argv: list[str] | None = None) -> dict:
    arguments = timing.parser("bench.train_step", __doc__, ("peft", "none"))
    arguments.add_argument("--models", nargs="+", choices=models.SHAPES, help="default: 31m; on a GPU 1.5b")
    arguments.add_argument("--prompts", type=int, default=4)
    arguments.add_argument("--group", type=int, default=8, help="completions per prompt")
    arguments.add_argument("--tokens", type=int, help="of the longest completion; default 128, on a GPU 512")
    options = timing.parse(arguments, argv)
    tokens = options.tokens or (16 if options.smoke else 512 if options.device == "cuda" else 128)
    peak, cases, checks = ceilings.peaks(options.device, options.smoke), [], {}
    for name in options.models or models.default_sizes(options, ("31m",), ("1.5b",)):
        with tempfile.TemporaryDirectory() as folder:
            path, vocab = (
                models.write_model(name, Path(folder), getattr(torch, options.dtype), options.device),
                models.SHAPES[name].vocab,
            )
            prompts = models.random_prompts(options.prompts, tokens // 2, tokens // 2, vocab)
            equal = sampler.Work(prompts, options.group, [tokens] * (options.prompts * options.group))
            variable = sampler.variable_work(options.prompts * options.group, tokens, vocab, options.group)
            for kind, work in (("equal", equal), ("variable", variable)):
                case, found = measure(path, work, f"{name}, {kind} lengths", options)
                cases.append(case)
                checks |= found
    return timing.finish("train_step", options, cases, checks, ceilings=peak)


if __name__ == "__main__":
    main()
