"""python -m bench.sampler [--peer NAME] [--models smollm2] [--batches 32] [--tokens 64] [--rank 16] [--busy]

How fast is generation, compared with transformers' generate at the same weights, dtype, prompts and lengths
(temperature 1, top_k 0)? With a vocabulary of 152k entries and top-p: --models 0.5b --batches 16 --tokens 32
--top-p 0.9.
  equal      distinct prompts of one length; all completions have one length
  variable   groups of 12 completions per prompt; prompts of 16 to 96 tokens; completion lengths are drawn once and
             are the same for both sides
  draw       the sampling operation alone, compared with torch.multinomial on the same rows; on a GPU ours is captured,
             as in generation, and torch.multinomial, which waits for the host, cannot be

Lengths are forced without touching how either side works: ours takes `limits`, the tokens that each completion may
have; transformers has stopping criteria that answer row by row, and fills done rows with padding until the longest is
done. Neither side knows an end token. For transformers, prompts of different lengths are padded on the left and
repeated for each completion, as TRL does. CTranslate2 and llama.cpp are given the lengths, too, and run in float32
(--dtype float32). Ours records log-probs while it samples; transformers is not asked to.

Checked in the same run, in float32: log-probs of the drawn tokens equal those of transformers' forward pass, and greedy
texts those of the engine. The floor is that of all decode steps, each with the rows that are not done. The last line
of stdout is JSON.
"""

import operator
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import chain
from pathlib import Path

import torch

from bench import ceilings, models, peers
from bench.llama_cpp import LlamaCpp
from bench.record import Results, parse
from bench.timing import Side
from bench.workload import KINDS, Work, padded, random_rows
from grpo.algorithm.schema import Completion
from grpo.engine.device.draw import SamplingParams, inverse_cdf, uniforms
from grpo.engine.device.ops import draw_tokens
from grpo.engine.sampling.decode_step import CudaCapture
from grpo.engine.sampling.sampler import Sampler

DRAWS = 16  # of each row, in one run
DRAW_TARGETS = {"operation": 20.0}
TARGETS = {"hf": (3.0, 5.0), "ctranslate2": (1.2, 1.2)}  # peer -> how many times as fast, at equal and varied lengths
SIZES = {
    "smoke": {
        "models": ["tiny"],
        "batches": [24],
        "tokens": 16,
        "vocabulary": 1000,
    },
    "cpu": {
        "models": ["smollm2"],
        "batches": [32],  # completions decoded together
        "tokens": 64,  # of the longest completion
        "top_p": 1.0,
        "rank": 0,  # of an adapter on all projections, of our side alone
        "busy": False,  # one process beside it that never waits
        "vocabulary": 32768,  # of the drawing
    },
    "cuda": {"models": ["1.5b"], "tokens": 512, "vocabulary": 151936},
}


def stop_at(ends: Sequence[int], device: torch.device):
    """Make transformers' stopping criterion: row r is done at ends[r] tokens, prompt and padding included."""
    from transformers import StoppingCriteria, StoppingCriteriaList

    class AtLength(StoppingCriteria):
        eos_token_id = None  # because it exists, generate pads rows that are done

        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_) -> torch.Tensor:
            return input_ids.shape[1] >= ends_B

    ends_B = torch.tensor(ends, device=device)
    return StoppingCriteriaList([AtLength()])


def generate(peer, work: Work, top_p: float) -> None:
    """Let transformers write the completions, padded to the longest."""
    ids_BS, mask_BS = padded(work.repeated, "left", peer.device)
    width = ids_BS.shape[1]
    ends = [width + length for length in work.lengths]
    peer.generation_config.eos_token_id = None
    with torch.inference_mode():
        ids_BS = peer.generate(
            ids_BS,
            attention_mask=mask_BS,
            max_new_tokens=work.steps,
            pad_token_id=0,
            stopping_criteria=stop_at(ends, peer.device),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=top_p,
        )
    assert ids_BS.shape[1] == max(ends)


def sample(sampler: Sampler, work: Work, **settings: float) -> list[Completion]:
    """Return our completions, prompt by prompt."""
    seeds = list(range(len(work.lengths)))
    params = SamplingParams(work.steps, **settings)
    return list(chain(*sampler.sample(work.prompts, work.group, params, seeds, limits=work.lengths)))


@contextmanager
def busy_process() -> Iterator[None]:
    """Keep a core busy meanwhile."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def speed(path: Path, work: Work, name: str, results: Results) -> None:
    """Time generation."""
    options = results.options
    model = models.ours(path, models.build_of(options, options.rank))
    sampler = Sampler(model, (), max_slots=len(work.lengths))  # made once, as in a run: on a GPU it prepares graphs

    def run_ours() -> None:
        completions = sample(sampler, work, top_p=options.top_p)
        assert [len(completion.ids) for completion in completions] == work.lengths

    sides: dict[str, Side] = {"ours": run_ours}
    if options.peer == "hf":
        peer = peers.transformers_model(path, models.build_of(options))
        sides["hf"] = partial(generate, peer, work, options.top_p)
    elif options.peer != "none":
        sides[options.peer] = partial(engine_of(options.peer, path, work).generate, work)
    floor = ceilings.generation_floor(model, work, results.peak)
    target = TARGETS.get(options.peer, (None, None))[work.group > 1]
    results.compare(name, sides, sum(work.lengths), floor, target=target)


def engine_of(peer: str, path: Path, work: Work) -> peers.CTranslate2 | LlamaCpp:
    """Load a checkpoint into one of the engines."""
    return peers.CTranslate2(path) if peer == "ctranslate2" else LlamaCpp(path, len(work.lengths))


def agreement(path: Path, options) -> dict[str, float]:
    """Compare both sides in float32: log-probs of drawn tokens with transformers', greedy texts with an engine's."""
    build = models.build_of(options, dtype="float32")
    model = models.ours(path, build)
    prompts = random_rows([5, 7, 9, 11, 13, 15, 17, 20], model.config.vocab_size)
    work = Work(prompts, group=1, lengths=[9, 11, 13, 15, 17, 19, 21, 23])
    sampler = Sampler(model, (), max_slots=8)
    if options.peer == "hf":
        pairs = zip(prompts, sample(sampler, work), strict=True)
        errors_C = peers.logprob_errors(peers.transformers_model(path, build), pairs)
        return {"logp_difference_max": float(errors_C.max())}
    from transformers import AutoTokenizer

    texts = engine_of(options.peer, path, work).generate(work, greedy=True)
    tokenizer = AutoTokenizer.from_pretrained(path)
    mine = [tokenizer.decode(completion.ids) for completion in sample(sampler, work, top_k=1)]
    return {"share of the same greedy texts": statistics.mean(map(operator.eq, texts, mine))}


def repeated(draw: Side, capture: CudaCapture | None = None) -> Side:
    """Return a side that draws DRAWS times; with `capture` by replaying one graph, so that the host does not count."""

    def run() -> None:
        for _ in range(DRAWS):
            draw()

    return capture(run).replay if capture else run


def drawing(results: Results) -> None:
    """Time drawing tokens from weights, and tokens with log-probs from logits; each row has its own distribution."""
    options = results.options
    rows = max(options.batches)
    vocab = options.vocabulary
    logits_BV = torch.randn(rows, vocab, device=options.device) * 3
    weight_BV = logits_BV.softmax(-1)
    seed_B = torch.arange(rows, device=options.device)
    step_B = torch.zeros_like(seed_B)
    uniform_B = uniforms(seed_B, step_B)
    outputs = torch.zeros_like(seed_B)[:, None], *torch.zeros(2, rows, 1, device=options.device)
    ours = {
        "operation": lambda: inverse_cdf(weight_BV, uniform_B),
        "from logits": lambda: draw_tokens(logits_BV, seed_B, step_B, SamplingParams(1), outputs),
    }
    theirs = {
        "operation": lambda: torch.multinomial(weight_BV, 1),
        "from logits": lambda: torch.multinomial(logits_BV.softmax(-1), 1),
    }
    for kind, draw in ours.items():
        sides = {"ours": repeated(draw, CudaCapture() if options.device == "cuda" else None)}
        if options.peer != "none":
            sides["torch.multinomial"] = repeated(theirs[kind])
        results.compare(
            f"draw, {kind}, {rows} x {vocab}", sides, tokens=rows, times=DRAWS, target=DRAW_TARGETS.get(kind)
        )


def main(argv: list[str] | None = None) -> dict:
    needs = {
        "hf": ("transformers",),
        "ctranslate2": ("ctranslate2", "transformers"),
        "llama.cpp": ("xllamacpp", "gguf", "transformers"),
        "none": (),
    }
    options = parse("sampler", __doc__, argv, SIZES, needs, choices={"models": models.SHAPES})
    results = Results("sampler", options, ceilings.peaks)
    about = f", top_p {options.top_p:g}" if options.top_p < 1 else ""
    about += f", adapter of rank {options.rank}" if options.rank else ""
    about += ", beside a busy process" if options.busy else ""
    about += f", with {options.peer}" if options.peer not in ("hf", "none") else ""
    for name in options.models:
        vocab = models.SHAPES[name]["vocab_size"]
        with models.temporary_model(name, options) as path:
            for batch in options.batches:
                for kind, make in KINDS.items():
                    work = make(batch, options.tokens, vocab)
                    with busy_process() if options.busy else nullcontext():
                        speed(path, work, f"{name}, {kind} lengths, batch {batch}{about}", results)
            if options.peer != "none":
                results.check({f"{name} {check}": value for check, value in agreement(path, options).items()})
    drawing(results)
    return results.finish()


if __name__ == "__main__":
    main()
