"""python -m bench.sampler [--peer hf|none] [--models 4m 27m 54m] [--batches 48 96] [--tokens 128]

How fast is generation against transformers' generate, with the same weights, dtype, prompts and lengths (temperature 1,
top_k 0)?
  equal      distinct prompts of one length, all completions of one length
  variable   groups of 12 completions per prompt, prompts of 16 to 96 tokens, completion lengths drawn once, the same for both sides
  draw       the sampling operation alone against torch.multinomial, on the same rows; chi-squared over 250,000 draws of each

Lengths are forced without touching how either side works. Ours takes them as `limits`, the argument of `Sampler.sample`
that says how many tokens each completion may have. transformers has stopping criteria that answer row by row; ours
marks a row as done at its length and, as the criterion for end tokens does, makes `generate` fill done rows with
padding until the longest row is done. Neither side knows an end token. Prompts of different lengths are padded on the
left for transformers, and repeated for each completion, as TRL does; both sides run in inference mode. We record
log-probs while sampling, which transformers is not asked for.

Checked in the same run, in float32: greedy tokens equal, log-probs of the drawn tokens equal those of transformers'
forward pass. Ceiling: the matrix products of every decode step at the number of rows alive in it, and nothing else.
The last line of stdout is JSON.
"""

import math
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from bench import ceilings, models, timing
from grpo.device.draw import SamplingParams, inverse_cdf, uniforms
from grpo.sampling.cuda_graph import draw_tokens
from grpo.sampling.sampler import Sampler
from grpo.schema import Completion

GROUP = 12
ROW_STEPS = 8  # rows alive are rounded down to multiples of this for the ceiling


@dataclass(frozen=True)
class Work:
    """Prompts, completions per prompt, and the tokens of each completion, prompt by prompt."""

    prompts: list[tuple[int, ...]]
    group: int
    lengths: list[int]

    @property
    def sampling(self) -> SamplingParams:
        return SamplingParams(max(self.lengths))

    @property
    def repeated(self) -> list[tuple[int, ...]]:
        """One prompt per completion."""
        return [prompt for prompt in self.prompts for _ in range(self.group)]


def equal_work(batch: int, tokens: int, vocab: int) -> Work:
    return Work(models.random_prompts(batch, tokens // 2, tokens // 2, vocab), 1, [tokens] * batch)


def variable_work(batch: int, tokens: int, vocab: int, group: int = GROUP) -> Work:
    """Completion lengths from a log-normal distribution cut off at the limit: many short ones, some that reach it."""
    rng = random.Random(0)
    lengths = [
        max(1, min(tokens, round(tokens * 0.4 * math.exp(0.6 * rng.gauss(0, 1)))))
        for _ in range(batch // group * group)
    ]
    return Work(models.random_prompts(batch // group, tokens // 8, tokens * 3 // 4, vocab), group, lengths)


def stop_at(ends: Sequence[int], device: str):
    """transformers' stopping criterion: row r is done when it has ends[r] tokens, prompt and padding included."""
    from transformers import StoppingCriteria, StoppingCriteriaList

    class AtLength(StoppingCriteria):
        eos_token_id = None  # its presence makes generate pad rows that are done

        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_) -> torch.Tensor:
            return input_ids.shape[1] >= ends_B

    ends_B = torch.tensor(ends, device=device)
    return StoppingCriteriaList([AtLength()])


def generate(peer, work: Work, device: str, **options) -> torch.Tensor:
    """transformers' completions, padded: [B, longest]."""
    prompts, width = work.repeated, max(map(len, work.prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=device)
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
    settings = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0} | options
    peer.generation_config.eos_token_id = None
    with torch.inference_mode():
        return peer.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=max(work.lengths),
            pad_token_id=0,
            stopping_criteria=stop_at([width + length for length in work.lengths], device),
            **settings,
        )[:, width:]


def sample(sampler: Sampler, work: Work, sampling: SamplingParams | None = None) -> list[Completion]:
    seeds = list(range(len(work.lengths)))
    groups = sampler.sample(work.prompts, work.group, sampling or work.sampling, seeds, limits=work.lengths)
    return [completion for group in groups for completion in group]


def ceiling_seconds(config, work: Work, dtype: torch.dtype, device: str) -> float:
    """The decode steps' matrix products alone, at the rows alive in each step."""
    alive = [sum(length > step for length in work.lengths) for step in range(max(work.lengths))]
    rounded = [max(rows // ROW_STEPS * ROW_STEPS, 1) for rows in alive]
    per_step = {
        rows: ceilings.products_seconds(ceilings.products(config, rows, rows), dtype, device) for rows in set(rounded)
    }
    return sum(per_step[rows] for rows in rounded)


def speed(path: Path, work: Work, name: str, options) -> dict:
    dtype = getattr(torch, options.dtype)
    model = models.ours(path, dtype, options.device)
    sampler, produced = (
        Sampler(model, (), max_slots=len(work.lengths)),
        {},
    )  # what it prepares on a GPU, it prepares once in a run
    sides = {"ours": lambda: produced.update(ours=[len(completion.ids) for completion in sample(sampler, work)])}
    if options.peer == "hf":
        peer = models.theirs(path, dtype, options.device)
        sides["hf"] = lambda: produced.update(hf=generate(peer, work, options.device).shape[1])
    case = {"name": name, **timing.compare(timing.interleave(sides, options.repeats, options.device))}
    assert produced["ours"] == work.lengths and produced.get("hf", max(work.lengths)) == max(work.lengths)
    seconds = case["seconds"]["ours"]["median"]
    case |= {
        "tokens": sum(work.lengths),
        "tokens_per_s": sum(work.lengths) / seconds,
        "target": 3.0 if work.group == 1 else 5.0,
        "ceiling_share": ceiling_seconds(model.config, work, dtype, options.device) / seconds,
    }
    timing.show(case)
    return case


def agreement(path: Path, device: str) -> dict[str, float]:
    """Share of greedy tokens that are equal, and the largest difference of the drawn tokens' log-probs; all in
    float32."""
    model, peer = models.ours(path, torch.float32, device), models.theirs(path, torch.float32, device)
    work, sampler = (
        Work(models.random_prompts(8, 5, 20, model.config.vocab_size), 1, list(range(9, 25, 2))),
        Sampler(model, (), max_slots=8),
    )
    greedy, wanted = (
        sample(sampler, work, SamplingParams(max(work.lengths), 0.0)),
        generate(peer, work, device, do_sample=False, temperature=None, top_p=None, top_k=None).tolist(),
    )
    equal = [
        a == b
        for completion, row in zip(greedy, wanted, strict=True)
        for a, b in zip(completion.ids, row, strict=False)
    ]
    largest = 0.0
    for prompt, completion in zip(work.prompts, sample(sampler, work), strict=True):
        ids = torch.tensor([*prompt, *completion.ids], device=device)
        with torch.inference_mode():
            logps = (
                peer(ids[None, :-1])
                .logits[0, len(prompt) - 1 :]
                .log_softmax(-1)
                .gather(1, ids[len(prompt) :, None])[:, 0]
                .tolist()
            )
        largest = max(largest, *(abs(a - b) for a, b in zip(logps, completion.logps, strict=True)))
    return {"greedy_equal": sum(equal) / len(equal), "logp_difference_max": largest}


def drawing(rows: int, vocab: int, options) -> list[dict]:
    """From weights to tokens, and from logits to tokens and log-probs; rows of different distributions."""
    logits_BV = torch.randn(rows, vocab, device=options.device) * 3
    weight_BV, seed_B = logits_BV.softmax(-1), torch.arange(rows, device=options.device)
    uniform_B, sampling = uniforms(seed_B, torch.zeros_like(seed_B)), SamplingParams(1)
    peers = options.peer != "none"
    pairs = {
        "operation": (lambda: inverse_cdf(weight_BV, uniform_B), lambda: torch.multinomial(weight_BV, 1)),
        "from logits": (
            lambda: draw_tokens(logits_BV, seed_B, seed_B, sampling),
            lambda: torch.multinomial(logits_BV.softmax(-1), 1),
        ),
    }
    cases = []
    for kind, (ours, theirs) in pairs.items():
        seconds = timing.interleave(
            {"ours": ours} | ({"torch.multinomial": theirs} if peers else {}), 4 * options.repeats, options.device
        )
        case = {"name": f"draw, {kind}, {rows} x {vocab}", **timing.compare(seconds)} | (
            {"target": 20.0} if kind == "operation" else {}
        )
        timing.show(case)
        cases.append(case)
    return cases


def chi_squared_z(num_draws: int, device: str, vocab: int = 1000) -> dict[str, float]:
    """How many standard deviations chi-squared lies off its mean, over draws from one distribution with Zipf's
    frequencies."""
    weight_V = 1 / torch.arange(3, vocab + 3, device=device, dtype=torch.float32)
    expected_V, counts = num_draws * (weight_V / weight_V.sum()).double(), {"ours": 0, "torch.multinomial": 0}
    torch.manual_seed(0)
    for start in range(0, num_draws, 10_000):
        seed_B = torch.arange(start, min(start + 10_000, num_draws), device=device)
        logits_BV = weight_V.log().expand(len(seed_B), -1)
        ids = {
            "ours": draw_tokens(logits_BV, seed_B, torch.zeros_like(seed_B), SamplingParams(1))[0],
            "torch.multinomial": torch.multinomial(weight_V, len(seed_B), replacement=True),
        }
        counts = {side: counts[side] + torch.bincount(ids[side], minlength=vocab).double() for side in counts}
    chi_squared = {side: float(((count_V - expected_V) ** 2 / expected_V).sum()) for side, count_V in counts.items()}
    return {side: (value - (vocab - 1)) / (2 * (vocab - 1)) ** 0.5 for side, value in chi_squared.items()}


def main(argv: list[str] | None = None) -> dict:
    arguments = timing.parser("bench.sampler", __doc__, ("hf", "none"))
    arguments.add_argument("--models", nargs="+", choices=models.SHAPES, help="default: 4m 27m 54m; on a GPU 1.5b")
    arguments.add_argument("--batches", type=int, nargs="+", default=[48, 96])
    arguments.add_argument("--tokens", type=int, help="of the longest completion; default 128, on a GPU 512")
    options = timing.parse(arguments, argv)
    tokens = options.tokens or (16 if options.smoke else 512 if options.device == "cuda" else 128)
    batches = [24] if options.smoke else options.batches
    names = options.models or models.default_sizes(options, ("4m", "27m", "54m"), ("1.5b",))
    peak, cases, checks = ceilings.peaks(options.device, options.smoke), [], {}
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            path, vocab = (
                models.write_model(name, Path(folder), getattr(torch, options.dtype), options.device),
                models.SHAPES[name].vocab,
            )
            for batch in batches:
                for kind, make in (("equal", equal_work), ("variable", variable_work)):
                    cases.append(
                        speed(path, make(batch, tokens, vocab), f"{name}, {kind} lengths, batch {batch}", options)
                    )
            if options.peer == "hf":
                checks |= {f"{name} {check}": value for check, value in agreement(path, options.device).items()}
    cases += drawing(max(batches), 1000 if options.smoke else 151936 if options.device == "cuda" else 32768, options)
    checks |= {
        f"chi_squared_z {side}": z
        for side, z in chi_squared_z(20_000 if options.smoke else 250_000, options.device).items()
    }
    return timing.finish("sampler", options, cases, checks, ceilings=peak)


if __name__ == "__main__":
    main()
