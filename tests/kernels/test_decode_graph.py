"""The decode step over static buffers: the same tokens as the sampler's, whatever the bucket, and with the kernels in
the interpreter."""

import pytest
import torch
from making import groups_of, load, randomise_adapter, whole, write_checkpoint

from grpo.device.capture import WARM_UPS, no_waiting
from grpo.device.draw import SamplingParams
from grpo.packing import pack_batch
from grpo.sampling.cache import KVCache
from grpo.sampling.cuda_graph import DecodeGraphs, bucket
from grpo.sampling.decode_step import Slots
from grpo.sampling.sampler import Sampler


@pytest.fixture(scope="module", params=["qwen2", "qwen3"])
def model(request, tmp_path_factory):
    made = load(write_checkpoint(tmp_path_factory.mktemp("graph"), request.param, spread=0.3), rank=4)
    randomise_adapter(made)
    return made


def generate(model, first_ids, seeds, limits, sampling, eos, steps=3, spare=4, kernel="sdpa", capture=None):
    """One-token prompts, so that there is nothing to prefill; `spare` slots stay free."""
    longest = max(limits)
    slots = Slots.make(
        KVCache.of(model, len(first_ids) + spare, longest + 1),
        longest,
    )
    for tensor in (slots.last_id_B, slots.position_B, slots.count_B, slots.limit_B, slots.seed_B):
        tensor.fill_(2)  # what was there before does not matter
    slots.limit_B.fill_(10**6)
    slots.ended_B.fill_(False)  # a free slot's last sequence may not even have ended
    live = slice(len(first_ids))
    for tensor, value in (
        (slots.last_id_B, first_ids),
        (slots.position_B, 0),
        (slots.count_B, 0),
        (slots.limit_B, limits),
        (slots.seed_B, seeds),
    ):
        tensor[live] = torch.as_tensor(value)
    slots.ended_B[live] = False
    graphs = DecodeGraphs(model, slots, eos, kernel, capture)
    with torch.inference_mode(), model.packed() as head:
        while not bool(slots.ended_B[live].all()):
            graphs.run(len(first_ids), steps, sampling, head)
    return [
        (slots.ids_BX[row, :n].tolist(), slots.logps_BX[row, :n].tolist())
        for row, n in enumerate(slots.count_B[live].tolist())
    ]


def over_slots(model, eos, **options):
    """A sampler that keeps its slots, as on a GPU."""
    sampler = Sampler(model, eos)
    vars(sampler).update(uses_graphs=True, **options)
    return sampler


FIRST, SEEDS, LIMITS = [5, 40, 3, 20, 60], [11, 12, 13, 14, 15], [20, 1, 7, 20, 13]


@pytest.mark.parametrize("steps", [1, 4, 9])
@pytest.mark.parametrize(
    "sampling", [SamplingParams(20), SamplingParams(20, 0.0), SamplingParams(20, 0.8, 0.9)], ids=str
)
def test_same_tokens_as_the_sampler(model, sampling, steps):
    ours = generate(model, FIRST, SEEDS, LIMITS, sampling, [2, 7, 30], steps)
    wanted = [c for (c,) in Sampler(model, [2, 7, 30]).sample([[i] for i in FIRST], 1, sampling, SEEDS, limits=LIMITS)]
    assert [ids for ids, _ in ours] == [c.ids for c in wanted]
    assert all(
        abs(a - b) <= 1e-5
        for (_, logps), c in zip(ours, wanted, strict=True)
        for a, b in zip(logps, c.logps, strict=True)
    )


@pytest.mark.parametrize(
    "sampling", [SamplingParams(6), SamplingParams(6, 0.0), SamplingParams(6, 0.9, 0.8, 30)], ids=str
)
def test_the_kernels_give_the_same_tokens(model, sampling, switch_kernels_on):
    """RMSNorm, rotation into the cache, split-KV attention, SwiGLU and drawing, all in the interpreter."""
    wanted = generate(model, FIRST[:3], SEEDS[:3], [3, 1, 2], sampling, [2], spare=1)
    asked = switch_kernels_on()
    ours = generate(model, FIRST[:3], SEEDS[:3], [3, 1, 2], sampling, [2], spare=1, kernel="triton")
    assert asked == {"rms_norm", "rotate_into_cache", "swiglu", "draw_tokens"}
    assert [ids for ids, _ in ours] == [ids for ids, _ in wanted]
    assert all(
        abs(a - b) <= 2e-5
        for (_, mine), (_, theirs) in zip(ours, wanted, strict=True)
        for a, b in zip(mine, theirs, strict=True)
    )


def test_buckets():
    """Few sizes, none smaller than what is needed, at most 7 rows or a fifth too many."""
    sizes = [bucket(n, 288) for n in range(1, 289)]
    assert len(set(sizes)) <= 26 and all(n <= size <= max(n + 7, 1.25 * n) for n, size in enumerate(sizes, 1))
    assert bucket(90, 92) == 92 and bucket(300, 512) == 320


class Recorder:
    """A capture that warms up as CudaCapture does, and replays by calling the step again."""

    def __init__(self):
        self.recorded = self.replayed = 0

    def __call__(self, step):
        self.recorded += 1
        for _ in range(WARM_UPS):
            step()
        return self.Graph(self, step)

    class Graph:
        def __init__(self, recorder, step):
            self.recorder, self.step = recorder, step

        def replay(self):
            self.recorder.replayed += 1
            self.step()


@pytest.mark.parametrize("sampling", [SamplingParams(20), SamplingParams(20, 0.0)], ids=str)
def test_capturing_leaves_no_trace(model, sampling):
    wanted, recorder = generate(model, FIRST, SEEDS, LIMITS, sampling, [2]), Recorder()
    assert generate(model, FIRST, SEEDS, LIMITS, sampling, [2], capture=recorder) == wanted
    assert (
        recorder.recorded == 1
        and recorder.replayed % 3 == 0
        and recorder.replayed >= max(len(ids) for ids, _ in wanted)
    )


def test_cuts_are_not_captured_without_kernels(model):
    """The host looks at their thresholds then."""
    recorder = Recorder()
    generate(model, FIRST, SEEDS, LIMITS, SamplingParams(20, 0.8, 0.9), [2], capture=recorder)
    assert recorder.recorded == 0


def test_another_way_to_draw_has_a_graph_of_its_own(model):
    """An evaluation between two steps of training, with the sampler of both."""
    sampler, recorder = over_slots(model, [2], max_slots=6), Recorder()
    sampler.prepare(6, 20, 9)
    sampler.graphs.capture = recorder
    for sampling in (SamplingParams(9), SamplingParams(9, 0.0), SamplingParams(9, 3.0), SamplingParams(9)):
        found, wanted = (
            one.sample([[5, 9, 6], [40]], 3, sampling, SEEDS + [16]) for one in (sampler, Sampler(model, [2]))
        )
        assert [[c.ids for c in group] for group in found] == [[c.ids for c in group] for group in wanted]
    assert recorder.recorded >= 3 and recorder.replayed


def test_the_samplers_slots_are_kept_and_grow(model):
    """One sampler over static slots, call after call: prompts of several tokens, refilled slots, other lengths, what
    was there before."""
    prompts, sampler = [[5, 9, 6], [40], [3, 3, 3, 7, 8]], over_slots(model, [2, 7], max_slots=4, check_every=3)
    for sampling, count in (
        (SamplingParams(9), 3),
        (SamplingParams(5, 0.0), 1),
        (SamplingParams(9, 0.7), 2),
        (SamplingParams(25), 3),
    ):
        before = sampler.graphs
        ours = sampler.sample(prompts, count, sampling, list(range(3 * count)))
        wanted = Sampler(model, [2, 7]).sample(prompts, count, sampling, list(range(3 * count)))
        assert [[c.ids for c in group] for group in ours] == [[c.ids for c in group] for group in wanted]
        assert (sampler.graphs is before) == (before is not None and sampling.max_new_tokens <= 9)


def test_streaming_over_static_slots(model):
    tokens = list(over_slots(model, [2]).stream([5, 9, 6], SamplingParams(12), 3))
    assert tokens == list(Sampler(model, [2]).stream([5, 9, 6], SamplingParams(12), 3))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "sampling", [SamplingParams(40), SamplingParams(40, 0.0), SamplingParams(40, 0.7, 0.9)], ids=str
)
def test_cuda_graphs_on_a_gpu(checkpoint, sampling, dtype):
    """Graphs against the same steps without; the log-probs against the trainer's."""
    from grpo.attention.select import packed_attention
    from grpo.logprobs import token_logprobs
    from grpo.model.lora import Build, LoraSpec
    from grpo.model.weights import load_decoder

    model = load_decoder(checkpoint, Build(LoraSpec(4, 8), False, dtype, "cuda"))
    randomise_adapter(model)
    prompts = [[5, 9, 6], [40], [3, 3, 3, 7, 8, 1]]
    sampler = over_slots(model, [2], max_slots=9, check_every=4)
    done = sampler.sample(prompts, 4, sampling, list(range(12)))
    assert sampler.graphs.graphs
    sampler.graphs.capture = None
    again = sampler.sample(prompts, 4, sampling, list(range(12)))
    with torch.inference_mode(), model.packed() as head, no_waiting():
        sampler.graphs.step(4, sampling, head)
    assert [[c.ids for c in group] for group in again] == [[c.ids for c in group] for group in done]
    batch = pack_batch(whole(*groups_of(prompts, done)), device="cuda")
    if sampling.temperature:
        with torch.no_grad():
            hidden = model(batch.ids_T, batch.positions_T, packed_attention(model, batch.layout))
            logp, _ = token_logprobs(
                hidden[batch.source_C],
                model.head(),
                batch.targets_C,
                sampling.temperature,
                batch.cut_C if sampling.truncates else None,
            )
        difference = logp - batch.sampler_logp_C
        assert difference.abs().mean() <= (1e-5 if dtype == torch.float32 else 3e-2)
