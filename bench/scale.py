"""How does a step scale to 8 and 64 GPUs? Counted, not measured.   python -m bench.scale

A step answers QUESTIONS questions ANSWERS times each, and trains once on the answers, with a KL penalty. N GPUs are W
replicas of T shards. P, A: weights of all layers, of their adapters. L layers of width D, vocabulary V, K bytes of keys
and values per token; a number has c = 2 bytes, a weight w = 2, or 1 with base_weights: int8.

generate   steps · max(bytes / M, flop / aimed F)  rows = QUESTIONS · ANSWERS / W, at most B of them at a time
             steps = LONGEST + MEAN · (rows / B - 1),  alive = rows · MEAN / steps
             bytes = (w P + c A + alive · (PROMPT + 2/3 MEAN) · K + c D V) / T
             flop  = 2 alive · (P + A + D V) / T
train      6 tokens · (P + A + D V) / T / share F  forward, backward and the reference's forward, 2 each
sums       (T - 1) · D c bytes for each sum        A shard sends its term to all others, which add in one order
             2 L + 1 sums for a token forward (to generate; to train, with policy and reference)
             2 L - 1 for a token backward, and one for an answer's
             32 (T - 1) bytes to draw a token, 16 (T - 1) for each of its two log-probs
             A decode step waits LATENCY for each of its 2 L + 3 exchanges
           2 (T - 1) / T · 4 min(A'', A' / W)      gradients that are sums over shards, around a ring of shards
update     2 (W - 1) / W · 4 A' bytes              float32 gradients of a shard's adapters, around a ring of replicas
             A'' : A of q, k, v, gate, up and B of o, down, which every shard has.  A' : these, and 1 / T of the others

share of F in training: we aim for AIMED. Others measure MEASURED with LoRA on an H100, recomputing activations
(prime-rl's baselines, 0.6B to 4B). The table has both. We measured 49 % of the peak on an H200, without recomputing
(7B, rank 256; bench/LOG.md, 2026-11-26).

Lengths are even from 0 to LONGEST, so a sequence that is alive has 2/3 MEAN tokens. Nothing overlaps, no activations
are computed again, and the prefill is left out. Efficiency: the flop of the step at T = 1, over N aimed F and the time.
tokens/s: those of the answers. The fewest shards are taken whose weights and optimizer (`grpo.engine.model.memory`
counts them) leave room for FEWEST sequences; if none do, weights in 8 bits. What is sent is held against gloo processes
(tests/test_scale.py). F, M and links: A800.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch

from bench.ceilings import num_weights
from bench.models import qwen2
from bench.record import markdown_table, plain_parser, rate
from grpo.engine.device.shard import Shard
from grpo.engine.model import memory
from grpo.engine.model.build import Build, LoraSpec
from grpo.engine.model.decoder import Decoder
from grpo.engine.model.model_config import ModelConfig

QUESTIONS = 64
ANSWERS = 12  # of a question
PROMPT = 256  # tokens
MEAN = 512  # tokens of an answer
LONGEST = 1024
F = 312e12  # flop per second, the peak
AIMED = 0.6  # the share of it that we aim for
MEASURED = (0.37, 0.11)  # the largest and the smallest share that others measure in training with LoRA
M = 0.75 * 2.04e12  # bytes per second: the peak, and the share of it that we aim for
NEAR = 200e9  # bytes per second that a GPU sends over NVLink
FAR = 25e9  # to other machines (200 Gbit/s)
LATENCY = 20e-6  # seconds
PER_MACHINE = 8  # GPUs
MEMORY = 0.9 * 80e9  # bytes of a GPU
MOST = 96  # sequences decoded together
FEWEST = 16
SHAPES = {
    "7B": qwen2(3584, 18944, 28, 28, 4, 152064, tied=False),
    "32B": qwen2(5120, 27648, 64, 40, 8, 152064, tied=False),
    "72B": qwen2(8192, 29568, 80, 64, 8, 152064, tied=False),
}
BOTH = f"at {AIMED:.0%} ({MEASURED[0]:.0%} to {MEASURED[1]:.0%}) of F"  # the assumption of a column
COLUMNS = [
    *("model", "GPUs", "W x T", "loaded", "sums", "update", "generate", "send"),
    *(f"train, {BOTH}", f"a step, {BOTH}", f"tokens/s, {BOTH}", f"efficiency, at {AIMED:.0%} of F"),
]


@dataclass(frozen=True)
class Layout:
    """A model on `replicas` times `shards` GPUs. rank: of the adapters. dtype: of the weights, unless int8."""

    config: ModelConfig
    replicas: int
    shards: int
    int8: bool = False
    rank: int = 64
    dtype: torch.dtype = torch.bfloat16

    @cached_property
    def sizes(self) -> list[int]:
        """Return the size of each projection that shards share. The other one is the model's width."""
        config = self.config
        q = config.num_heads * config.head_dim
        kv = config.num_kv_heads * config.head_dim
        return [q, kv, kv, q, *[config.intermediate_size] * 3]

    def adapter_numbers(self, shards: int) -> int:
        """Count the numbers that each of so many shards trains."""
        of_shard = sum(size // shards for size in self.sizes)
        own = self.config.num_layers * self.rank * of_shard
        return own + self.common_numbers()

    def common_numbers(self) -> int:
        """Count those of them that all shards have."""
        return self.config.num_layers * self.rank * len(self.sizes) * self.config.hidden_size

    def update_bytes(self) -> float:
        """Count what a GPU sends to the other replicas in an update."""
        around_ring = 2 * (self.replicas - 1) / self.replicas
        return around_ring * 4 * self.adapter_numbers(self.shards)

    def sum_bytes(self, prefilled: float, generated: float, trained: float) -> float:
        """Count what a GPU sends to the other shards for so many tokens, before the update.

        prefilled: tokens of prompts before generation. trained: prompts and answers, without the answers' last tokens.
        """
        forward = 2 * self.config.num_layers + 1
        backward = 2 * self.config.num_layers - 1
        sums = forward * (prefilled + generated + 2 * trained)
        sums += backward * trained + generated
        sum_bytes = sums * self.config.hidden_size * self.dtype.itemsize
        drawing = 4 * 8 * generated
        scoring = 2 * 4 * 4 * generated
        return (self.shards - 1) * (sum_bytes + drawing + scoring)

    def gradient_sum_bytes(self, replica: int = 0) -> float:
        """Count what a GPU of this replica sends to the other shards in an update. The first one sends most."""
        updated = self.adapter_numbers(self.shards) / self.replicas  # by each replica; the common ones come first
        left = max(self.common_numbers() - replica * updated, 0)
        around_ring = 2 * (self.shards - 1) / self.shards
        return around_ring * 4 * min(left, updated)

    @cached_property
    def model(self) -> Decoder:
        """Return what a GPU holds of the model, without numbers."""
        lora = LoraSpec(self.rank, self.rank)
        shard = Shard(0, self.shards)
        build = Build(lora, False, self.dtype, "meta", int8=self.int8, shard=shard)
        return Decoder(self.config, build)

    @cached_property
    def loaded_bytes(self) -> float:
        """Count weights and optimizer of a GPU."""
        return memory.Loaded(self.model, num_replicas=self.replicas).account().total

    @cached_property
    def slots(self) -> int:
        """Count the sequences that a replica decodes together: half of the free memory, as in `memory`."""
        per_sequence = (PROMPT + LONGEST) * memory.kv_bytes_per_token(self.model)
        free = MEMORY - self.loaded_bytes
        return min(MOST, int(free / 2 / per_sequence))

    @property
    def rows(self) -> float:
        """Count the answers that a replica generates in a step."""
        return QUESTIONS * ANSWERS / self.replicas

    @property
    def decode_steps(self) -> float:
        """Count the decode steps of a GRPO step."""
        rounds = self.rows / min(self.rows, self.slots)
        return LONGEST + MEAN * (rounds - 1)

    @cached_property
    def token_flop(self) -> int:
        """Count the flop of a forward pass over one token, of all shards together."""
        return 2 * (sum(num_weights(self.config)) + self.adapter_numbers(1))

    def generate_seconds(self) -> float:
        """Return the seconds of all decode steps: what must be read, or the arithmetic."""
        alive = self.rows * MEAN / self.decode_steps
        cached = alive * (PROMPT + 2 / 3 * MEAN) * memory.kv_bytes_per_token(self.model)
        layers, head = num_weights(self.config)
        number_bytes = self.dtype.itemsize
        weight_bytes = 1 if self.int8 else number_bytes
        read = weight_bytes * layers + number_bytes * (self.adapter_numbers(1) + head)
        memory_seconds = (read / self.shards + cached) / M
        flop_seconds = alive * self.token_flop / self.shards / (AIMED * F)
        return self.decode_steps * max(memory_seconds, flop_seconds)

    def train_seconds(self, share: float = AIMED) -> float:
        """Return the seconds of reference, forward and backward passes at this share of the peak."""
        flop = 3 * self.token_flop * self.tokens() / self.shards
        return flop / (share * F)

    def send_seconds(self) -> float:
        """Return the seconds of all that a GPU sends and waits for."""
        num_gpus = self.replicas * self.shards
        link = NEAR if num_gpus <= PER_MACHINE else FAR
        exchanges = 2 * self.config.num_layers + 3 if self.shards > 1 else 0
        waits = exchanges * self.decode_steps * LATENCY
        return waits + self.all_sum_bytes() / NEAR + self.update_bytes() / link

    def step_seconds(self, share: float = AIMED) -> float:
        """Return the seconds of a step if training reaches this share of the peak."""
        return self.generate_seconds() + self.train_seconds(share) + self.send_seconds()

    def efficiency(self) -> float:
        """Return the share of the GPUs' arithmetic that the step's products take."""
        generated = QUESTIONS * ANSWERS * MEAN
        trained = self.tokens() * self.replicas
        flop = self.token_flop * (3 * trained + generated)
        num_gpus = self.replicas * self.shards
        return flop / (AIMED * F) / num_gpus / self.step_seconds()

    def all_sum_bytes(self) -> float:
        """Count what a GPU sends to the other shards in a step."""
        questions = QUESTIONS / self.replicas
        in_passes = self.sum_bytes(questions * PROMPT, questions * ANSWERS * MEAN, self.tokens())
        return in_passes + self.gradient_sum_bytes()

    def tokens(self) -> float:
        """Count the tokens that a replica trains on; a prompt and its answers are packed, so it is there once."""
        return QUESTIONS / self.replicas * (PROMPT + ANSWERS * MEAN)


def choose(config: ModelConfig, num_gpus: int) -> Layout | None:
    """Return the layout with the fewest shards that fits; None if the model does not fit."""
    for int8 in (False, True):
        for shards in (1, 2, 4, 8):
            if num_gpus < shards or config.num_kv_heads % shards:
                continue
            layout = Layout(config, num_gpus // shards, shards, int8)
            if layout.slots >= FEWEST:
                return layout
    return None


def both(write: Callable[[float], str], unit: str = "") -> str:
    """Write a figure of training at the share that we aim for, and at those that others measure.

    write: from a share to the figure.
    """
    largest, smallest = map(write, MEASURED)
    return f"{write(AIMED)}{unit} ({largest} to {smallest})"


def cells(name: str, num_gpus: int) -> list[str]:
    """Fill a line of the table."""
    layout = choose(ModelConfig.from_hf(SHAPES[name]), num_gpus)
    if layout is None:
        return [name, str(num_gpus), "does not fit", *[""] * (len(COLUMNS) - 3)]
    where = f"{layout.replicas} x {layout.shards}, {'int8' if layout.int8 else 'bfloat16'}"
    num_bytes = (layout.loaded_bytes, layout.all_sum_bytes(), layout.update_bytes())
    sizes = [f"{number / 1e9:,.1f} GB" for number in num_bytes]
    times = [f"{seconds:.1f} s" for seconds in (layout.generate_seconds(), layout.send_seconds())]
    ranges = [
        both(lambda share: f"{layout.train_seconds(share):.1f}", " s"),
        both(lambda share: f"{layout.step_seconds(share):.1f}", " s"),
        both(lambda share: rate(QUESTIONS * ANSWERS * MEAN / layout.step_seconds(share))),
    ]
    return [name, str(num_gpus), where, *sizes, *times, *ranges, f"{layout.efficiency():.0%}"]


def table() -> str:
    """Make the table of README.md."""
    return markdown_table(COLUMNS, [cells(name, num_gpus) for name in SHAPES for num_gpus in (1, 8, 64)])


if __name__ == "__main__":
    plain_parser("bench.scale", __doc__).parse_args()
    print(table())
