"""GRPO (group relative policy optimization) in one file of plain PyTorch.  python -m grpo.minimal

A small model is asked whether the sum of six digits is odd: "348192:". It has seen two ways to answer. It can guess,
"=1$", or first write down the parity of each partial sum, "111011=1$". Nobody says which way is better. An answer earns
1 if it is right and 0 if it is wrong, and GRPO finds out. The run takes about 15 seconds of one core.

`grpo_step` is the algorithm. It is the slow twin of everything else here: given the same weights and answers, the
trainer of train.py reaches the same weights (tests/grpo/test_minimal.py). What is left out, and where it is:

    a cache of keys and values                                                 engine/sampling/
    top-k and top-p                                                            engine/device/draw.py
    packing instead of padding; each prompt computed once; micro-batches       algorithm/packing.py
    weights over several micro-batches and processes                           algorithm/loss_weights.py
    logits of a few tokens at a time                                           algorithm/logprobs.py
    several rewards                                                            rewards/scorer.py
    two-sided clipping; correction for a sampler's rounding                    algorithm/variants.py
    answers that cannot be scored                                              algorithm/advantages.py
    LoRA in bfloat16; a reference without a second copy of the model           engine/model/lora.py
    schedules, weight decay, float16, several processes                        algorithm/optimizer.py

Equations: algorithm/MATH.md. A tensor's name ends in its shape: N completions, P prompts, G completions of a prompt,
S positions, V vocabulary, D width, H heads, K key-value heads, E width of a head, R rank, I inputs, O outputs, 1 one,
X any other axis.
"""

import copy
import random
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

VOCABULARY = "0123456789:=$"  # a token per character; "$" ends an answer
END = VOCABULARY.index("$")
Ids = list[list[int]]  # the tokens of some texts


@dataclass(frozen=True)
class Settings:
    """The settings of GRPO, named as in a configuration of train.py."""

    num_generations: int = 8  # completions per prompt
    max_completion_length: int = 10  # tokens
    temperature: float = 1.0
    scale_rewards: str = "group"  # or batch, none
    loss_type: str = "dapo"  # or grpo, dr_grpo, bnpo
    importance_sampling_level: str = "token"  # or sequence: GSPO
    epsilon: float = 0.2
    epsilon_high: float = 0.28
    beta: float = 0.001
    num_iterations: int = 2  # updates per step
    per_device_train_batch_size: int = 64  # completions that bnpo averages; a step has a multiple of it
    max_grad_norm: float = 1.0


def encode(texts: list[str]) -> Ids:
    return [[VOCABULARY.index(character) for character in text] for text in texts]


def decode(ids: Ids) -> list[str]:
    return ["".join(VOCABULARY[token] for token in row) for row in ids]


def parities(question: str) -> str:
    """Return the parity of each partial sum: "111011" for "348192:". The last one is the true answer."""
    return "".join(str(sum(map(int, question[:end])) % 2) for end in range(1, len(question)))


def reward(question: str, answer: str) -> float:
    """Return 1 if an answer ends as it should, else 0. What it says before does not count."""
    return float(answer.endswith(f"={parities(question)[-1]}$"))


def rotate(x_NHSE: Tensor) -> Tensor:
    """Turn each pair of entries (e, e + E/2) by an angle that grows with the position (RoPE, 2104.09864)."""
    first, second = x_NHSE.chunk(2, dim=-1)
    num_positions, half = first.shape[-2:]
    angle_SX = torch.arange(num_positions)[:, None] * 10000.0 ** (-torch.arange(half) / half)
    cos_SX, sin_SX = angle_SX.cos(), angle_SX.sin()
    return torch.cat([first * cos_SX - second * sin_SX, second * cos_SX + first * sin_SX], dim=-1)


class Block(nn.Module):
    """A layer of Qwen2: attention and MLP, each on a norm of the residual stream (RMSNorm, 1910.07467)."""

    def __init__(self, width: int, hidden: int, num_heads: int, num_kv_heads: int):
        super().__init__()
        self.head_dim, self.num_sharing = width // num_heads, num_heads // num_kv_heads
        self.attention_norm, self.mlp_norm = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)
        self.q_proj = nn.Linear(width, num_heads * self.head_dim)
        self.k_proj = nn.Linear(width, num_kv_heads * self.head_dim)
        self.v_proj = nn.Linear(width, num_kv_heads * self.head_dim)
        self.o_proj = nn.Linear(num_heads * self.head_dim, width, bias=False)
        self.gate_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)

    def forward(self, x_NSD: Tensor) -> Tensor:
        x_NSD = x_NSD + self.attention(self.attention_norm(x_NSD))
        return x_NSD + self.mlp(self.mlp_norm(x_NSD))

    def attention(self, x_NSD: Tensor) -> Tensor:
        """Attend to this token and those before it. Several query heads share a key-value head (GQA, 2305.13245)."""
        projected = self.q_proj(x_NSD), self.k_proj(x_NSD), self.v_proj(x_NSD)
        q_NHSE, k_NKSE, v_NKSE = (x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for x in projected)
        k_NHSE, v_NHSE = (x.repeat_interleave(self.num_sharing, dim=1) for x in (rotate(k_NKSE), v_NKSE))
        later_SS = torch.full((x_NSD.shape[1], x_NSD.shape[1]), -torch.inf).triu(1)
        score_NHSS = rotate(q_NHSE) @ k_NHSE.mT / self.head_dim**0.5
        share_NHSS = (score_NHSS + later_SS).softmax(dim=-1)
        return self.o_proj((share_NHSS @ v_NHSE).transpose(1, 2).flatten(2))

    def mlp(self, x_NSD: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x_NSD)) * self.up_proj(x_NSD))  # SwiGLU (2002.05202)


class Transformer(nn.Module):
    """Tokens to logits. Rows are padded at their end, where no token of theirs looks."""

    def __init__(self, vocab_size: int, width: int, hidden: int, num_layers: int, num_heads: int, num_kv_heads: int):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
        self.blocks = nn.Sequential(*(Block(width, hidden, num_heads, num_kv_heads) for _ in range(num_layers)))
        self.norm = nn.RMSNorm(width, eps=1e-6)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)

    def forward(self, ids_NS: Tensor) -> Tensor:
        return self.norm(self.blocks(self.embedding(ids_NS))) @ self.embedding.weight.T


class LoraLinear(nn.Module):
    """A frozen linear layer plus a trained change of low rank (2106.09685). B starts at 0, and so does the change."""

    def __init__(self, linear: nn.Linear, rank: int, alpha: float):
        super().__init__()
        num_outputs, num_inputs = linear.weight.shape
        self.weight, self.bias, self.scale = linear.weight, linear.bias, alpha / rank
        self.A_RI = nn.Parameter(torch.empty(rank, num_inputs).uniform_(-1, 1) / num_inputs**0.5)
        self.B_OR = nn.Parameter(torch.zeros(num_outputs, rank))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight + self.scale * self.B_OR @ self.A_RI, self.bias)  # Eq. 15


def add_lora(model: Transformer, rank: int, alpha: float) -> None:
    """Freeze the model, and give each projection an adapter."""
    model.requires_grad_(False)
    for block in model.blocks:
        for name, module in list(block.named_children()):
            if isinstance(module, nn.Linear):
                setattr(block, name, LoraLinear(module, rank, alpha))


@torch.no_grad()
def sample(policy: Transformer, prompts: Ids, c: Settings) -> Ids:
    """Sample a completion of each prompt. All prompts have the same length."""
    ids_NS = torch.tensor(prompts)
    for _ in range(c.max_completion_length):
        logits_NV = policy(ids_NS)[:, -1] / c.temperature
        token_N1 = torch.multinomial(logits_NV.softmax(dim=-1), num_samples=1)
        ids_NS = torch.cat([ids_NS, token_N1], dim=1)
    completions = ids_NS[:, len(prompts[0]) :].tolist()
    return [ids[: ids.index(END) + 1] if END in ids else ids for ids in completions]


def pad(prompts: Ids, completions: Ids) -> tuple[Tensor, Tensor]:
    """Return prompts and completions as rows of one length, and a mask that is 1 for each token of a completion."""
    pairs = list(zip(prompts, completions, strict=True))
    rows = [torch.tensor(prompt + completion) for prompt, completion in pairs]
    masks = [torch.tensor([0.0] * len(prompt) + [1.0] * len(completion)) for prompt, completion in pairs]
    return pad_sequence(rows, batch_first=True), pad_sequence(masks, batch_first=True)


def logprobs(model: Transformer, ids_NS: Tensor, temperature: float = 1.0) -> Tensor:
    """Compute the log-prob of each token, given those before it. The first token of a row gets 0."""
    logits_NSV = model(ids_NS[:, :-1]) / temperature  # a token is predicted at the place before it
    logp_NS1 = logits_NSV.log_softmax(dim=-1).gather(dim=-1, index=ids_NS[:, 1:, None])  # Eq. 3
    return F.pad(logp_NS1[:, :, 0], (1, 0))


def grpo_step(policy, reference, optimizer, prompts: Ids, completions: Ids, rewards: list[float], c: Settings) -> float:
    """Train on the completions of one step, given group by group. Return the share clipped in the last update."""
    ids_NS, mask_NS = pad(prompts, completions)
    num_tokens_N1 = mask_NS.sum(dim=1, keepdim=True)

    reward_PG = torch.tensor(rewards).view(-1, c.num_generations)
    std = {"group": reward_PG.std(dim=1, keepdim=True) + 1e-4, "batch": reward_PG.std() + 1e-4, "none": torch.ones(())}
    advantage_N1 = ((reward_PG - reward_PG.mean(dim=1, keepdim=True)) / std[c.scale_rewards]).view(-1, 1)  # Eq. 1, 2

    N, size = len(prompts), c.per_device_train_batch_size
    denominator: Tensor | float
    match c.loss_type:
        case "grpo":  # mean over the tokens of a completion, then over completions
            denominator = N * num_tokens_N1
        case "dapo":  # mean over all tokens
            denominator = num_tokens_N1.sum()
        case "dr_grpo":  # as grpo, with a constant for the number of tokens
            denominator = N * c.max_completion_length
        case "bnpo":  # as dapo, batch by batch
            denominator = N / size * num_tokens_N1.view(-1, size, 1).sum(dim=1).repeat_interleave(size, dim=0)
    weight_NS = mask_NS / denominator  # Eq. 8: w

    with torch.no_grad():
        old_logp_NS = logprobs(policy, ids_NS, c.temperature)  # Eq. 3: ℓ_old
        ref_logp_NS = logprobs(reference, ids_NS, c.temperature)  # Eq. 3: ℓ_ref

    for _ in range(c.num_iterations):
        logp_NS = logprobs(policy, ids_NS, c.temperature)  # Eq. 3: ℓ_θ
        log_ratio_NS = logp_NS - old_logp_NS  # Eq. 4: log ρ
        if c.importance_sampling_level == "sequence":
            log_ratio_NS = (log_ratio_NS * mask_NS).sum(dim=1, keepdim=True) / num_tokens_N1 * mask_NS  # Eq. 9: log s
        ratio_NS = log_ratio_NS.exp()  # Eq. 4: ρ
        clamped_NS = ratio_NS.clamp(1 - c.epsilon, 1 + c.epsilon_high)
        surrogate_NS = torch.minimum(ratio_NS * advantage_N1, clamped_NS * advantage_N1)  # Eq. 5
        d_NS = ref_logp_NS - logp_NS
        kl_NS = d_NS.exp() - d_NS - 1  # Eq. 6: KL
        loss = ((c.beta * kl_NS - surrogate_NS) * weight_NS).sum()  # Eq. 7
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), c.max_grad_norm)
        optimizer.step()
    return float(((surrogate_NS < ratio_NS * advantage_N1) * mask_NS).sum() / mask_NS.sum())


def cold_start(policy: Transformer, questions: list[str]) -> None:
    """Teach both ways to answer; one answer in four is worked out. The loss is the mean of -log p over their tokens."""
    optimizer = torch.optim.AdamW(policy.parameters(), lr=4e-3, weight_decay=0.0)
    for _ in range(300):
        asked = random.sample(questions, 64)
        answers = [random.choice([steps, "", "", ""]) + "=" + steps[-1] + "$" for steps in map(parities, asked)]
        ids_NS, mask_NS = pad(encode(asked), encode(answers))
        loss = -(logprobs(policy, ids_NS) * mask_NS).sum() / mask_NS.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main() -> None:
    """Teach, train, and grade answers to held-out questions before and after GRPO."""
    random.seed(0), torch.manual_seed(0)
    torch.set_num_threads(1)  # the model is too small for more
    c = Settings()
    questions = [f"{number:06}:" for number in random.sample(range(10**6), 10**6)]
    held_out, training = questions[:500], questions[500:]
    print("cold start: 300 batches of 64 answers")
    policy = Transformer(len(VOCABULARY), width=64, hidden=192, num_layers=2, num_heads=4, num_kv_heads=2)
    cold_start(policy, training)
    before = decode(sample(policy, encode(held_out), c))
    print("GRPO: mean reward, mean length of the answers, share of clipped tokens")
    add_lora(policy, rank=16, alpha=32)
    reference = copy.deepcopy(policy)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=5e-4, weight_decay=0.0)
    for step in range(31):
        asked = [question for question in random.sample(training, 16) for _ in range(c.num_generations)]
        completions = sample(policy, encode(asked), c)
        rewards = list(map(reward, asked, decode(completions)))
        clipped = grpo_step(policy, reference, optimizer, encode(asked), completions, rewards, c)
        if step % 2 == 0:
            mean, length = sum(rewards) / len(asked), sum(map(len, completions)) / len(asked)
            print(f"step {step:2}  {mean:.2f} {'█' * round(50 * mean):50}  {length:4.1f}  {clipped:.3f}")
    after = decode(sample(policy, encode(held_out), c))
    print("question:parities of its partial sums, if it works them out=parity of the sum$")
    for name, answers in (("before", before), ("after", after)):
        right = sum(map(reward, held_out, answers)) / len(held_out)
        print(f"{name:7} {right:.1%} of 500 held-out answers are right; the first one is {held_out[0]}{answers[0]}")


if __name__ == "__main__":
    main()
