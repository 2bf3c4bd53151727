"""python -m bench.decode [--models 1.5b 7b] [--batches 1 24 96 288] [--context 512] [--rank R] [--top-p P] [--profile]

How close is a decode step (embed to end flags, as CUDA graphs on a GPU) to what memory and arithmetic allow?
Weights are random and made on the device: nothing is read or downloaded. Every row has --context tokens behind it.
  lora      the same at 96 rows with an adapter of the model's usual rank (1.5b 16, 7b 256), against without: what the adapter costs
  backends  the decode attentions of grpo/attention/select.py at that shape, each with its error and time

The floor of a step is the larger of: bytes (all weights but the embedding once, keys and values of the context) at the
copy bandwidth measured in the same run; operations of the matrix products at the measured rate of a large product. Its
share is the ceiling's. --profile prints the kernels that take longest. The last line of stdout is JSON.
"""

import statistics

import torch

from bench import ceilings, models, timing
from grpo.attention.select import choose_decoder, describe
from grpo.device.draw import SamplingParams
from grpo.model.decoder import Decoder, ModelConfig, RMSNorm
from grpo.model.lora import Build, LoraSpec
from grpo.run import memory
from grpo.sampling.cache import KVCache
from grpo.sampling.cuda_graph import CudaCapture, DecodeGraphs, Slots

RANKS = {"1.5b": 16, "7b": 256}
TARGETS = {1: 0.80, 24: 0.75, 96: 0.75, 288: 0.70}
STEPS = 32


def random_decoder(name: str, dtype: torch.dtype, device: str, rank: int = 0) -> Decoder:
    """A decoder of that shape with random weights, made where it will be used."""
    shape = models.SHAPES[name]
    raw = {
        "model_type": "qwen2",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.mlp,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "tie_word_embeddings": shape.tied,
        "max_position_embeddings": 4096,
        "rope_theta": 1e6,
    }
    return fill(
        Decoder(ModelConfig.from_hf(raw), Build(LoraSpec(rank, 2 * rank) if rank else None, False, dtype, device))
    )


@torch.no_grad()
def fill(model: Decoder) -> Decoder:
    spread = 0.8 / model.config.hidden_size**0.5
    for layer in model.linears():
        for part in layer.out_slices:
            layer.base(part)[0].normal_(0, spread)
    for weight in [model.embedding] + ([model.untied_head] if model.untied_head else []):
        weight.source.normal_(0, spread)
    for module in model.modules():
        if isinstance(module, RMSNorm):
            module.weight.source.fill_(1)
    generator = torch.Generator().manual_seed(1)
    for layer in model.lora_layers():
        layer.reset(generator)
        for part in layer.rank_slices:
            layer.adapter(part)[1].normal_(0, 0.01)
    model.refresh()
    return model


class Steps:
    """Decode steps of `rows` sequences with `context` tokens each; `run` makes STEPS of them from the same state."""

    def __init__(self, model: Decoder, rows: int, context: int, decoder: str, top_p: float):
        c, build = model.config, model.build
        self.model, self.rows, self.context, self.sampling = model, rows, context, SamplingParams(STEPS, top_p=top_p)
        cache = KVCache(c.num_layers, rows, c.num_kv_heads, context + STEPS + 1, c.head_dim, build.dtype, build.device)
        cache.kv_L2BKSE.normal_()
        self.slots = Slots.make(cache, STEPS)
        self.slots.seed_B.copy_(torch.arange(rows))
        self.graphs = DecodeGraphs(
            model, self.slots, (), decoder, CudaCapture() if str(build.device) == "cuda" else None
        )

    @torch.inference_mode()
    def run(self) -> None:
        slots = self.slots
        for tensor, value in (
            (slots.position_B, self.context),
            (slots.count_B, 0),
            (slots.limit_B, STEPS + 1),
            (slots.ended_B, False),
        ):
            tensor.fill_(value)
        with self.model.prepacked() as head_VD:
            self.graphs.run(self.rows, STEPS, self.sampling, head_VD)


def floor_seconds(model: Decoder, rows: int, context: int, peak: dict[str, float], dtype: torch.dtype) -> float:
    shapes = ceilings.products(model.config, rows, rows)
    weights = sum(inputs * outputs for _, inputs, outputs in shapes) * dtype.itemsize
    kv = rows * context * memory.kv_bytes_per_token(model.config, dtype)
    rate = peak["bfloat16_tflops" if dtype == torch.bfloat16 else "float32_tflops"]
    return max((weights + kv) / peak["copy_gb_per_s"] / 1e9, ceilings.flops(shapes) / rate / 1e12)


def measure(name: str, model: Decoder, rows: int, options, peak: dict[str, float]) -> dict:
    c, dtype = model.config, model.build.dtype
    choice = choose_decoder(
        c.num_heads, c.num_kv_heads, c.head_dim, rows, options.context + STEPS + 1, dtype, options.device
    )
    steps = Steps(model, rows, options.context, choice.name, options.top_p)
    seconds = [
        taken / STEPS for taken in timing.interleave({"ours": steps.run}, options.repeats, options.device)["ours"]
    ]
    median, floor = statistics.median(seconds), floor_seconds(model, rows, options.context, peak, dtype)
    case = {
        "name": f"{name}, {rows} rows, context {options.context}"
        + (", LoRA" if model.build.lora else "")
        + (f", top_p {options.top_p:g}" if options.top_p < 1 else ""),
        "seconds": {"ours": timing.spread(seconds)},
        "tokens_per_s": rows / median,
        "ceiling_share": floor / median,
        "target": TARGETS.get(rows, 0.7),
        "attention": str(choice),
    }
    timing.show(case)
    print(f"  attention: {choice}", flush=True)
    if options.profile:
        case["kernels"] = profile(steps.run, options.device)
    return case


def profile(run, device: str, count: int = 12) -> list[dict]:
    """The operations that take longest, on the device where there is one; printed, and as [name, calls,
    microseconds]."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity

    on_gpu = device == "cuda"
    with torch.profiler.profile(activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * on_gpu) as recorded:
        run()
        timing.now(device)
    key, kind = ("self_device_time_total", DeviceType.CUDA) if on_gpu else ("self_cpu_time_total", DeviceType.CPU)
    spent = sorted(
        (e for e in recorded.key_averages() if e.device_type == kind and getattr(e, key) > 0),
        key=lambda e: -getattr(e, key),
    )
    total, events = sum(getattr(e, key) for e in spent) or 1, spent[:count]
    for e in events:
        print(
            f"    {100 * getattr(e, key) / total:5.1f} %  {getattr(e, key):10.0f} µs  {e.count:6} calls  {e.key[:90]}",
            flush=True,
        )
    return [{"name": e.key[:120], "calls": e.count, "microseconds": getattr(e, key)} for e in events]


def main(argv: list[str] | None = None) -> dict:
    arguments = timing.parser("bench.decode", __doc__)
    arguments.add_argument("--models", nargs="+", choices=models.SHAPES, help="default: 4m; on a GPU 1.5b 7b")
    arguments.add_argument("--batches", type=int, nargs="+", default=[1, 24, 96, 288])
    arguments.add_argument("--context", type=int, default=512)
    arguments.add_argument("--rank", type=int, help="of the adapter; default: the model's usual one")
    arguments.add_argument("--top-p", type=float, default=1.0)
    arguments.add_argument("--profile", action="store_true")
    options = timing.parse(arguments, argv)
    batches = [1, 5] if options.smoke else options.batches
    options.context = 20 if options.smoke else options.context
    peak, dtype, cases, checks = ceilings.peaks(options.device, options.smoke), getattr(torch, options.dtype), [], {}
    print(describe(options.device), flush=True)
    names = options.models or models.default_sizes(options, ("4m",), ("1.5b", "7b"))
    for name in names:
        wanted_profile, options.profile = options.profile, False
        model = random_decoder(name, dtype, options.device)
        plain = {rows: measure(name, model, rows, options, peak) for rows in batches}
        del model
        options.profile, rows = wanted_profile, 96 if 96 in batches else batches[-1]
        adapted = measure(
            name, random_decoder(name, dtype, options.device, options.rank or RANKS.get(name, 16)), rows, options, peak
        )
        checks[f"{name}: LoRA against without, {rows} rows"] = (
            adapted["seconds"]["ours"]["median"] / plain[rows]["seconds"]["ours"]["median"]
        )
        cases += [*plain.values(), adapted]
    return timing.finish(
        "decode",
        options,
        cases,
        checks,
        ceilings=peak,
        kernels=describe(options.device),
        part=" ".join([*names, f"top_p {options.top_p:g}"]),
    )


if __name__ == "__main__":
    main()
