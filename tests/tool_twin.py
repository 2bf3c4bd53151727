"""The slow twin of completions that call tools: drawn token by token, and trained token by token."""

import pytest
import torch
from making import ALONE, hidden_states, whole

from grpo.algorithm.logprobs import batch_logprobs
from grpo.algorithm.loss import policy_loss
from grpo.algorithm.loss_weights import set_loss_weights
from grpo.algorithm.packing import pack_batch
from grpo.algorithm.schema import completions_of
from grpo.config.options import TrainConfig
from grpo.engine.device.draw import NO_CUT
from grpo.engine.device.ops import draw_tokens, exact_logits
from grpo.engine.sampling.sampler import Sampler


def sampled(model, ends, tools, prompts, number, params, seeds, **options):
    """What a sampler with these options draws."""
    sampler = Sampler(model, ends, tools=tools)
    vars(sampler).update(options)
    return sampler.sample(prompts, number, params, seeds)


def told(done):
    """What has to be the same in any company."""
    return [[(one.ids, one.calls, one.finish_reason) for one in group] for group in done]


@torch.inference_mode()
def naive(model, prompt, params, seed, ends, answer):
    """One completion, from the whole text each time: its tokens, log-probs, cuts, and which were given.

    answer: called after each token with what was drawn since the last result, the number of results, and the room.
    """
    limit, start, num_results = params.max_new_tokens, 0, 0
    ids, logps, cuts, given = [], [], [], []
    while len(ids) < limit:
        tokens, place = torch.tensor([*prompt, *ids]), len(ids)
        logits_1V = exact_logits(hidden_states(model, tokens)[-1:], model.head())
        results = tuple(torch.zeros(1, limit + 1, dtype=dtype) for dtype in (torch.int64, torch.float32, torch.float32))
        ids.append(int(draw_tokens(logits_1V, torch.tensor([seed]), torch.tensor([place]), params, results)))
        logps.append(float(results[1][0, place])), cuts.append(float(results[2][0, place])), given.append(False)
        block = answer(ids[start:], num_results, limit - len(ids) - 1)
        if block:
            ids += block
            logps, cuts = logps + [0.0] * len(block), cuts + [NO_CUT] * len(block)
            given, start, num_results = given + [True] * len(block), len(ids), num_results + 1
        elif ids[-1] in ends:
            break
    return ids, logps, cuts, given


def check_tokens(model, prompts, done, params, seeds, ends, answer):
    """Each completion is the naive one, token by token. Returns which of its tokens were given."""
    all_given, seeds = [], iter(seeds)
    for prompt, group in zip(prompts, done, strict=True):
        for completion in group:
            ids, logps, cuts, given = naive(model, prompt, params, next(seeds), ends, answer)
            assert completion.ids == ids
            assert list(completion.drawn()) == [place for place, is_given in enumerate(given) if not is_given]
            assert completion.logps == pytest.approx(logps, abs=1e-5)
            assert completion.cuts == pytest.approx(cuts, abs=1e-5)
            all_given.append(given)
    return all_given


def check_gradient(model, groups, all_given):
    """In float64 it is that of the drawn tokens, each predicted from the whole text before it; Eq. 8 counts these.

    all_given: which tokens of each completion were given.
    """
    completions = completions_of(groups)
    config = TrainConfig(per_device_train_batch_size=len(completions), loss_type="grpo")
    for number, completion in enumerate(completions):
        completion.advantage = (number % 5 - 2) / 3
    set_loss_weights(groups, config, ALONE)
    batch = pack_batch(whole(*groups), dtype=torch.float64)
    logp_C, _ = batch_logprobs(model, batch)
    policy_loss(batch, logp_C, config)[0].backward()
    ours = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    assert any(map(any, all_given))
    prompts, loss = [group.prompt.ids for group in groups for _ in group.completions], 0.0
    for prompt, completion, given in zip(prompts, completions, all_given, strict=True):
        logits_TV = hidden_states(model, torch.tensor([*prompt, *completion.ids])) @ model.head().T
        drawn = [place for place, is_given in enumerate(given) if not is_given]
        for place in drawn:
            logp = logits_TV[len(prompt) + place - 1].log_softmax(dim=0)[completion.ids[place]]
            loss = loss - completion.advantage * (logp - logp.detach()).exp() / len(drawn) / len(completions)
    loss.backward()
    for mine, parameter in zip(ours, model.parameters(), strict=True):
        assert (mine - parameter.grad).abs().max() <= 1e-10 * parameter.grad.abs().max()
