"""The sampler against transformers' generate, against the trainer's log-probs, and against itself in other company."""

import itertools

import pytest
import torch
from making import from_transformers, groups_of, load, refused, whole, write_checkpoint

from grpo.algorithm.logprobs import batch_logprobs
from grpo.algorithm.packing import pack_tokens
from grpo.engine.device.draw import SamplingParams
from grpo.engine.sampling.decode_step import KVCache, Slots
from grpo.engine.sampling.sampler import Sampler, check_finite

PROMPTS = [[5, 9, 6], [40], [3, 3, 3, 7, 8, 1, 0, 2, 50, 51, 52], [20, 21], [60, 61, 62, 63]]


def policy(folder, dtype=torch.float32, held=None):
    return load(folder, rank=4, dtype=dtype, held=held)


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama"])
def test_greedy_tokens_equal_transformers(tmp_path, family):
    write_checkpoint(tmp_path, family, spread=0.3)
    model, theirs = load(tmp_path), from_transformers(tmp_path)
    ours = Sampler(model, [2]).sample(PROMPTS, 1, SamplingParams(30, temperature=0.0), [0] * 5)
    for prompt, (completion,) in zip(PROMPTS, ours, strict=True):
        inputs = torch.tensor([prompt])
        options = {"attention_mask": torch.ones_like(inputs), "pad_token_id": 0}
        ids = theirs.generate(inputs, max_new_tokens=30, do_sample=False, **options)[0, len(prompt) :].tolist()
        assert completion.ids == ids
        assert completion.finish_reason == ("stop" if ids[-1] == 2 else "length")


SAMPLING = [SamplingParams(25, 0.7), SamplingParams(25, 0.7, 0.9), SamplingParams(25, 1.2, 0.95, 10)]


@pytest.mark.parametrize("sampling", SAMPLING, ids=str)
def test_same_tokens_in_any_company(checkpoint, sampling):
    """A completion depends on its prompt, its seed and the weights: not on slots, order, refill or prefill batches."""
    model, seeds = policy(checkpoint), list(range(100, 120))
    together = Sampler(model, [2, 7]).sample(PROMPTS, 4, sampling, seeds)
    for options in (
        {"max_slots": 1},
        {"max_slots": 3},
        {"max_slots": 7, "prefill_tokens": 4},
        {"check_every": 5},
        {"max_slots": 6, "check_every": 4},
        {"uses_graphs": True},
        {"uses_graphs": True, "max_slots": 7, "check_every": 3},
    ):
        sampler = Sampler(model, [2, 7])
        vars(sampler).update(options)
        again = sampler.sample(PROMPTS, 4, sampling, seeds)
        assert [[c.ids for c in group] for group in again] == [[c.ids for c in group] for group in together]
    alone = Sampler(model, [2, 7]).sample([PROMPTS[2]], 4, sampling, seeds[8:12])
    assert [c.ids for c in alone[0]] == [c.ids for c in together[2]]


def scored(model, prompts, done, sampling):
    """Log-probs of what was sampled, by the trainer and by the sampler."""
    tokens = pack_tokens(whole(*groups_of(prompts, done)))
    recorded_C = torch.tensor([logp for group in done for completion in group for logp in completion.logps])
    with torch.no_grad():
        return batch_logprobs(model, tokens, temperature=sampling.temperature)[0], recorded_C


@pytest.mark.parametrize("sampling", SAMPLING, ids=str)
@pytest.mark.parametrize("held", [None, "int8", "nf4"])
def test_logprobs_equal_the_trainers(checkpoint, sampling, held):
    """To 1e-5 in float32, with temperature, top-p and top-k: what is scored is the distribution that was sampled
    from."""
    model = policy(checkpoint, held=held)
    done = Sampler(model, [2]).sample(PROMPTS, 4, sampling, list(range(20)))
    theirs, ours = scored(model, PROMPTS, done, sampling)
    assert len(ours) > 100
    assert (theirs - ours).abs().max() <= 1e-5


@pytest.mark.parametrize("held", [None, "int8", "nf4"])
def test_bf16_noise_is_small_and_unbiased(checkpoint, held):
    model, sampling = policy(checkpoint, torch.bfloat16, held), SamplingParams(40)
    theirs, ours = scored(model, PROMPTS, Sampler(model, []).sample(PROMPTS, 16, sampling, list(range(80))), sampling)
    difference = theirs - ours
    assert difference.abs().mean() <= 3e-2 and difference.mean().abs() <= 3e-3


def test_limits_stops_and_callbacks(checkpoint):
    model, seen = policy(checkpoint), []
    limits = [1, 2, 3, 30, 5, 30, 7, 8, 9, 10]
    done = Sampler(model, range(0, 96, 12), max_slots=4).sample(
        PROMPTS, 2, SamplingParams(30), list(range(10)), lambda n, c: seen.append((n, c)), limits
    )
    flat = list(itertools.chain(*done))
    assert sorted(n for n, _ in seen) == list(range(10)) and all(flat[n] is c for n, c in seen)
    for completion, limit in zip(flat, limits, strict=True):
        ended = completion.ids[-1] % 12 == 0
        assert all(i % 12 for i in completion.ids[:-1])
        assert completion.finish_reason == ("stop" if ended else "length") and (ended or len(completion.ids) == limit)
        assert len(completion.ids) == len(completion.logps) == len(completion.cuts) <= limit


def test_empty_prompt_is_refused(checkpoint):
    with pytest.raises(ValueError, match="without tokens"):
        Sampler(policy(checkpoint), [2]).sample([[]], 1, SamplingParams(3), [1])


@pytest.mark.parametrize(
    "sampling", [SamplingParams(9), SamplingParams(9, 0.7, 0.9), SamplingParams(1), SamplingParams(9, 0.0)], ids=str
)
@pytest.mark.parametrize("prompt", [PROMPTS[1], PROMPTS[2]], ids=["one token", "long"])
def test_a_stream_is_the_completion_without_its_end_token(checkpoint, sampling, prompt):
    """To the last token that the limit allows; with an end token, up to it."""
    model = policy(checkpoint)
    ids = Sampler(model, []).sample([prompt], 1, sampling, [11])[0][0].ids
    assert len(ids) == sampling.max_new_tokens
    assert list(Sampler(model, []).stream(prompt, sampling, 11)) == ids
    end = ids[len(ids) // 2]
    assert list(Sampler(model, [end]).stream(prompt, sampling, 11)) == ids[: ids.index(end)]
    ended = Sampler(model, [end]).sample([prompt], 1, sampling, [11])[0][0]
    assert ended.ids == ids[: ids.index(end) + 1] and ended.finish_reason == "stop"


@pytest.mark.parametrize("bad", [float("nan"), float("-inf")])
def test_one_log_prob_that_is_not_finite_spoils_an_answer(bad):
    check_finite(-0.5, -1.0)
    for logps in ([-0.5, bad], [bad, -0.5]):
        refused(lambda logps=logps: check_finite(*logps), "logits are not finite", exit_code=5)


def test_slots_hold_as_many_new_tokens_as_they_were_made_for():
    slots = Slots.make(KVCache(torch.zeros(1, 2, 2, 1, 9, 4)), 5)
    assert slots.holds(2, 9, 5) and not slots.holds(2, 9, 6)
    assert not slots.holds(3, 9, 5) and not slots.holds(2, 10, 5)


def test_the_positions_by_which_a_cache_grows_are_zeros(monkeypatch):
    """Attention multiplies what lies there by 0, and NaN times 0 is NaN. Here memory that nobody has set is NaN."""
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    was = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(3).isnan().all()
        cache = KVCache(torch.zeros(2, 2, 3, 1, 0, 4))
        for positions in (5, 70):
            cache.reserve(positions)
            assert cache.num_positions >= positions and not cache.kv_L2BKSE.any()
    finally:
        torch.use_deterministic_algorithms(was)
