"""The decode step over static buffers: the same tokens as the sampler's, whatever the bucket, and with the kernels in
the interpreter."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from making import groups_of, load, randomise_adapter, whole, write_checkpoint

from grpo.algorithm.packing import pack_tokens
from grpo.engine.device.draw import SamplingParams
from grpo.engine.sampling.decode_step import WARM_UPS, bucket
from grpo.engine.sampling.sampler import Sampler


@pytest.fixture(scope="module", params=["qwen2", "qwen3"])
def model(request, tmp_path_factory):
    return load(write_checkpoint(tmp_path_factory.mktemp("graph"), request.param, spread=0.3), rank=4)


@torch.inference_mode()
def over_slots(model, eos, num_slots, max_new_tokens, steps=3, kernel="sdpa", capture=None):
    """A sampler that keeps its slots, as on a GPU. What was in them before does not matter."""
    sampler = Sampler(model, eos, num_slots)
    vars(sampler).update(uses_graphs=True, check_every=steps)
    sampler.reserve(num_slots, 8 + max_new_tokens, max_new_tokens)
    graphs = sampler.kept
    graphs.kernel, graphs.capture = kernel, capture
    slots = graphs.slots
    for tensor in (slots.last_id_B, slots.position_B, slots.count_B, slots.limit_B, slots.seed_B):
        tensor.fill_(2)
    slots.limit_B.fill_(10**6)
    slots.ended_B.fill_(False)  # a free slot's last sequence may not even have ended
    return sampler


PROMPTS, SEEDS, LIMITS = [[5], [40, 9, 6], [3], [20], [60]], [11, 12, 13, 14, 15], [20, 1, 7, 20, 13]


def assert_same(found, wanted, tolerance):
    """The same tokens, and log-probs but for rounding."""
    for ours, theirs in zip(found, wanted, strict=True):
        assert [one.ids for one in ours] == [one.ids for one in theirs]
        for mine, other in zip(ours, theirs, strict=True):
            assert mine.logps == pytest.approx(other.logps, abs=tolerance)


@pytest.mark.parametrize(
    "sampling", [SamplingParams(6), SamplingParams(6, 0.0), SamplingParams(6, 0.9, 0.8, 30)], ids=str
)
def test_the_kernels_give_the_same_tokens(model, sampling, switch_kernels_on):
    """RMSNorm, rotation into the cache, split-KV attention, SwiGLU and drawing, all in the interpreter."""
    prompts, options = PROMPTS[::2], {"limits": [3, 1, 2]}
    wanted = Sampler(model, [2]).sample(prompts, 1, sampling, SEEDS[:3], **options)
    asked, sampler = switch_kernels_on(), over_slots(model, [2], 4, 6, kernel="triton")
    assert_same(sampler.sample(prompts, 1, sampling, SEEDS[:3], **options), wanted, 2e-5)
    assert asked == {"rms_norm", "rotate_into_cache", "swiglu", "draw_tokens"}


def test_buckets():
    """Few sizes, none smaller than what is needed, at most 7 rows or a fifth too many."""
    sizes = [bucket(n, 288) for n in range(1, 289)]
    assert len(set(sizes)) <= 26
    assert all(n <= size <= max(n + 7, 1.25 * n) for n, size in enumerate(sizes, 1))
    assert bucket(90, 92) == 92
    assert bucket(300, 512) == 320


class Recorder:
    """A capture that warms up as CudaCapture does, and replays by calling the step again."""

    def __init__(self):
        self.recorded = self.replayed = 0

    def __call__(self, step):
        self.recorded += 1
        for _ in range(WARM_UPS):
            step()
        return SimpleNamespace(replay=partial(self.replay, step))

    def replay(self, step):
        self.replayed += 1
        step()


def test_capturing_leaves_no_trace_and_each_way_to_draw_has_a_graph_of_its_own(model):
    """As in an evaluation between two steps of training, with the sampler of both. With top-p and without kernels,
    nothing is captured: the host looks at the thresholds then."""
    recorder = Recorder()
    sampler = over_slots(model, [2], 9, 20, capture=recorder)
    ways = [SamplingParams(20), SamplingParams(20, 0.0), SamplingParams(9, 3.0), SamplingParams(20)]
    for sampling in [*ways, SamplingParams(20, 0.8, 0.9)]:
        before = recorder.recorded, recorder.replayed
        limits = [min(limit, sampling.max_new_tokens) for limit in LIMITS]
        found, wanted = (
            one.sample(PROMPTS, 1, sampling, SEEDS, limits=limits) for one in (sampler, Sampler(model, [2]))
        )
        assert_same(found, wanted, 2e-5)
        assert (recorder.replayed > before[1]) != sampling.truncates
    assert recorder.recorded >= 3
    assert (recorder.recorded, recorder.replayed) == before


def test_the_samplers_slots_are_kept_and_grow(model):
    """One sampler over static slots, call after call: prompts of several tokens, refilled slots, other lengths, what
    was there before."""
    prompts, sampler = [[5, 9, 6], [40], [3, 3, 3, 7, 8]], over_slots(model, [2, 7], 4, 9)
    for sampling, count in (
        (SamplingParams(9), 3),
        (SamplingParams(5, 0.0), 1),
        (SamplingParams(9, 0.7), 2),
        (SamplingParams(25), 3),
    ):
        before, seeds = sampler.kept, list(range(3 * count))
        found, wanted = (one.sample(prompts, count, sampling, seeds) for one in (sampler, Sampler(model, [2, 7])))
        assert_same(found, wanted, 1e-5)
        assert (sampler.kept is before) == (sampling.max_new_tokens <= 9)
    tokens = list(sampler.stream([5, 9, 6], SamplingParams(12), 3))
    assert tokens == list(Sampler(model, [2, 7]).stream([5, 9, 6], SamplingParams(12), 3))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "sampling", [SamplingParams(40), SamplingParams(40, 0.0), SamplingParams(40, 0.7, 0.9)], ids=str
)
def test_cuda_graphs_on_a_gpu(checkpoint, sampling, dtype):
    """Graphs against the same steps without; the log-probs against the trainer's."""
    from grpo.algorithm.logprobs import batch_logprobs
    from grpo.engine.model.build import Build, LoraSpec
    from grpo.engine.model.weights import load_decoder

    model = load_decoder(checkpoint, Build(LoraSpec(4, 8), False, dtype, "cuda"))
    randomise_adapter(model)
    prompts = [[5, 9, 6], [40], [3, 3, 3, 7, 8, 1]]
    sampler = Sampler(model, [2], 9)
    done = sampler.sample(prompts, 4, sampling, list(range(12)))
    assert sampler.kept.graphs
    sampler.kept.capture = None
    again = sampler.sample(prompts, 4, sampling, list(range(12)))
    assert [[c.ids for c in group] for group in again] == [[c.ids for c in group] for group in done]
    batch = pack_tokens(whole(*groups_of(prompts, done)), device="cuda")
    if sampling.temperature:
        with torch.no_grad():
            logp, _ = batch_logprobs(model, batch, temperature=sampling.temperature)
        recorded_C = torch.tensor([logp for group in done for completion in group for logp in completion.logps])
        difference = logp.cpu() - recorded_C
        assert difference.abs().mean() <= (1e-5 if dtype == torch.float32 else 3e-2)
