"""The slow twin of completions that call tools: drawn token by token, and trained token by token."""

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


def check_gradient(model, groups, given, loss_type, limit, size):
    """In float64 it is that of the drawn tokens, each predicted from the whole text before it; Eq. 8 counts these.

    given: which tokens of each completion were given. size: completions of a micro-batch.
    """
    completions = completions_of(groups)
    total = len(completions)
    keys = {"max_completion_length": limit, "per_device_train_batch_size": size, "loss_type": loss_type}
    config = TrainConfig(gradient_accumulation_steps=total // size, **keys)
    for number, completion in enumerate(completions):
        completion.advantage = (number % 5 - 2) / 3
    set_loss_weights(groups, config, ALONE)
    batch = pack_batch(whole(*groups), dtype=torch.float64)
    logp_C, _ = batch_logprobs(model, batch)
    policy_loss(batch, logp_C, config)[0].backward()
    ours = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    drawn = [[place for place, is_given in enumerate(of_one) if not is_given] for of_one in given]
    counts, loss = [len(places) for places in drawn], 0.0
    assert sum(counts) < sum(len(completion.ids) for completion in completions)
    prompts = [group.prompt.ids for group in groups for _ in group.completions]
    for number, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        denominator = {
            "grpo": total * counts[number],
            "dapo": sum(counts),
            "dr_grpo": total * limit,
            "bnpo": total // size * sum(counts[number // size * size :][:size]),
        }[loss_type]
        tokens = torch.tensor([*prompt, *completion.ids])
        logits_TV = hidden_states(model, tokens) @ model.head().T
        for place in drawn[number]:
            logp = logits_TV[len(prompt) + place - 1].log_softmax(dim=0)[completion.ids[place]]
            loss = loss - completion.advantage * (logp - logp.detach()).exp() / denominator
    loss.backward()
    for mine, parameter in zip(ours, model.parameters(), strict=True):
        assert (mine - parameter.grad).abs().max() <= 1e-10 * parameter.grad.abs().max()
