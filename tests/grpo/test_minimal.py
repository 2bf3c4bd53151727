"""minimal.py and the trainer: from the same weights and the same answers, both reach the same weights, in float64."""

import copy
import inspect
import json
import re
from contextlib import contextmanager
from dataclasses import fields, replace

import pytest
import torch
from commands import ROOT, run_command
from making import edit_json, write_chat_checkpoint, write_rows

from grpo import minimal
from grpo.config.load import load_config
from grpo.run.run import Run
from grpo.train import GrpoTrainer

NUM_STEPS = 3
KEYS = {
    "torch_dtype": "float64",
    "reward_funcs": ["reward_functions:early_letters"],
    "num_generations": 4,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 2,
    "max_completion_length": 12,
    "max_tokens_per_micro_batch": 50,  # so that groups are split
    "temperature": 0.7,
    "epsilon": 0.1,
    "epsilon_high": 0.15,
    "max_grad_norm": 0.1,
    "learning_rate": 1e-2,
    "lr_scheduler_type": "constant",
    "lora_alpha": 12,
    "max_steps": NUM_STEPS,
    "save_steps": 0,
    "report_to": ["none"],
    "disable_tqdm": True,
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A model of whose tokens every fifth ends an answer, so that answers differ in length."""
    folder = write_chat_checkpoint(tmp_path_factory.mktemp("model"), spread=0.3, tie_word_embeddings=True)
    edit_json(folder / "generation_config.json", eos_token_id=list(range(0, 300, 5)))
    return folder


@pytest.fixture()
def in_float64():
    """minimal.py computes in torch's default dtype."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


# --- the trainer: everything that this file knows about it ----------------------------------------------------------


@contextmanager
def make_trainer(folder, checkpoint, **keys):
    questions = [{"question": "?" * (number % 5) + f" {number}", "answer": "1"} for number in range(32)]
    paths = {
        "model_name_or_path": str(checkpoint),
        "dataset_id_or_path": str(write_rows(folder / "questions.jsonl", questions)),
        "output_dir": str(folder / "run"),
    }
    (folder / "run.yaml").write_text(json.dumps({**KEYS, **paths, **keys}))
    config, notices = load_config(folder / "run.yaml")
    with Run(config, notices) as run:
        trainer = GrpoTrainer(config, run)
        yield trainer
        trainer.rollout.scorer.close()


def train(trainer):
    """Yield what was sampled in each step (prompts, completions, rewards), group by group; the weights afterwards; the
    norm of the last gradient."""
    for _ in range(NUM_STEPS):
        trainer.run_step()
        pairs = [(group.prompt, completion) for group in trainer.learned.groups for completion in group.completions]
        parts = [(list(prompt.ids), completion.ids, completion.reward) for prompt, completion in pairs]
        yield list(zip(*parts, strict=True)), trained_weights(trainer), trainer.learned.grad_norms[-1]


def trained_weights(trainer):
    """A copy of the weights that are trained, under the names of minimal.py."""
    named = trainer.model.named_tensors()
    if trainer.config.lora_r:
        named = {}
        for name, (linear, part) in trainer.model.projections().items():
            named[f"{name}.A_RI"], named[f"{name}.B_OR"] = linear.adapter(part)
    return {name_in_minimal(name): tensor.detach().clone() for name, tensor in named.items()}


def name_in_minimal(name):
    """Translate the name of a tensor in a checkpoint of Hugging Face."""
    name = name.removeprefix("model.").replace("layers.", "blocks.").replace("embed_tokens", "embedding")
    name = name.replace("input_layernorm", "attention_norm").replace("post_attention_layernorm", "mlp_norm")
    return re.sub(r"(self_attn|mlp)\.", "", name)


# --- minimal.py beside it -------------------------------------------------------------------------------------------


def settings_of(config):
    same = {field.name: getattr(config, field.name) for field in fields(minimal.Settings)}
    same["epsilon_high"] = same["epsilon_high"] or config.epsilon
    return minimal.Settings(**same)


def twin_of(trainer):
    """The model of minimal.py with the trainer's weights."""
    c = trainer.model.config
    sizes = c.vocab_size, c.hidden_size, c.intermediate_size, c.num_layers, c.num_heads, c.num_kv_heads
    model = minimal.Transformer(*sizes)
    model.load_state_dict({name_in_minimal(name): tensor for name, tensor in trainer.model.named_tensors().items()})
    if trainer.config.lora_r:
        minimal.add_lora(model, trainer.config.lora_r, trainer.config.lora_alpha)
        model.load_state_dict(trained_weights(trainer), strict=False)
    return model


def assert_equal_training(folder, checkpoint, bound=None, **keys):
    """Train with both. No weight may differ by more than 1e-9 of what its tensor has moved in three steps, or by more
    than 3e-9 after each; `bound` takes the place of both.

    Adam divides by the gradient, which is nearly 0 in some entry: see the test of a larger epsilon.
    Returns the largest share of clipped tokens in a step.
    """
    with make_trainer(folder, checkpoint, **keys) as trainer:
        c, start, policy = settings_of(trainer.config), trained_weights(trainer), twin_of(trainer)
        reference, shares = copy.deepcopy(policy), []
        adam = {"lr": trainer.config.learning_rate, "eps": trainer.config.adam_epsilon, "weight_decay": 0.0}
        adam["betas"] = trainer.config.adam_beta1, trainer.config.adam_beta2
        optimizer = torch.optim.AdamW(policy.parameters(), **adam)
        for number, (sampled, weights, grad_norm) in enumerate(train(trainer), start=1):
            shares.append(minimal.grpo_step(policy, reference, optimizer, *sampled, c))
            own = {name: tensor.detach() for name, tensor in policy.named_parameters() if tensor.requires_grad}
            assert own.keys() == weights.keys()
            for name, tensor in own.items():
                moved, error = (float((weights[name] - other).abs().max()) for other in (start[name], tensor))
                allowed = bound or (1e-9 if number == NUM_STEPS else 3e-9)
                assert error <= allowed * moved, (name, moved, error)
            assert grad_norm > c.max_grad_norm
            assert min(len(set(map(len, texts))) for texts in sampled[:2]) > 1
    assert min(float((weights[name] - start[name]).abs().max()) for name in start) > 1e-3
    return max(shares)


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("num_iterations", [1, 3])
@pytest.mark.parametrize("lora_r", [0, 4])
@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo", "bnpo"])
def test_the_trainer_equals_minimal(tmp_path, checkpoint, loss_type, beta, lora_r, num_iterations):
    """Ratios are exactly 1 in the first iteration, so clipping needs a second one."""
    keys = {"loss_type": loss_type, "beta": beta, "lora_r": lora_r, "num_iterations": num_iterations}
    assert (assert_equal_training(tmp_path, checkpoint, **keys) > 0.01) == (num_iterations > 1)


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("keys", [
    {"importance_sampling_level": "sequence"},
    {"importance_sampling_level": "sequence", "loss_type": "grpo", "lora_r": 0, "beta": 0.0},
    {"scale_rewards": "batch"},
    {"scale_rewards": "none"},
    {"epsilon_high": None},
    *({"reward_funcs": ["reward_functions:tied"], "beta": 0.0, "loss_type": kind} for kind in ("grpo", "dapo", "bnpo")),
], ids=str)  # fmt: skip
def test_the_trainer_equals_minimal_in_variants(tmp_path, checkpoint, keys):
    assert assert_equal_training(tmp_path, checkpoint, **{"beta": 0.1, "lora_r": 4, "num_iterations": 2, **keys}) > 0.01


CLIPPED = "torch.minimum(ratio_NS * advantage_N1, clamped_NS * advantage_N1)"
KL = "c.beta * kl_NS"
ENTROPY_NS = "F.pad(torch.distributions.Categorical(logits=policy(ids_NS[:, :-1]) / c.temperature).entropy(), (1, 0))"
TWINS = {  # what a variant puts in the place of a piece of minimal.grpo_step
    "cispo": (CLIPPED, "ratio_NS.detach().clamp(max=c.epsilon_high) * advantage_N1 * logp_NS"),  # Eq. 21
    "entropy": (KL, f"{KL} - 0.05 / mask_NS.sum() / weight_NS.clamp(min=1e-99) * mask_NS * {ENTROPY_NS}"),  # Eq. 22
}


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("lora_r", [0, 4])
@pytest.mark.parametrize(("name", "keys"), [
    ("cispo", {"loss_type": "cispo", "epsilon_high": 1.01}),
    ("cispo", {"loss_type": "cispo", "epsilon_high": 1.01, "importance_sampling_level": "sequence"}),
    ("entropy", {"loss_type": "grpo", "entropy_coef": 0.05}),
    ("entropy", {"loss_type": "dapo", "entropy_coef": 0.05, "beta": 0.1, "reward_funcs": ["reward_functions:tied"]}),
], ids=str)  # fmt: skip
def test_the_trainer_equals_minimal_with_a_piece_replaced(tmp_path, checkpoint, monkeypatch, name, keys, lora_r):
    """A variant is a piece of the step; the twin of the bonus is a mean over all tokens, whatever their weights."""
    source = inspect.getsource(minimal.grpo_step).replace('case "dapo":', 'case "dapo" | "cispo":')
    piece, other = TWINS[name]
    assert source.count(piece) == 1
    exec(source.replace(piece, other), vars(minimal), found := {})
    monkeypatch.setattr(minimal, "grpo_step", found["grpo_step"])
    assert assert_equal_training(tmp_path, checkpoint, **{"lora_r": lora_r, "num_iterations": 2, **keys}) > 0.01


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("lora_r", [0, 4])
def test_the_difference_that_is_left_is_adams(tmp_path, checkpoint, lora_r):
    """Adam divides an entry's gradient g by |g| + epsilon. Where |g| is not far above 1e-8, rounding of g shows."""
    keys = {"lora_r": lora_r, "beta": 0.1, "num_iterations": 2, "learning_rate": 3e-2}
    keys |= {"adam_epsilon": 1e-3, "adam_beta1": 0.75, "adam_beta2": 0.5}
    assert_equal_training(tmp_path, checkpoint, bound=1e-12, **keys)


def test_minimal_pays_for_the_parity_and_the_end_token():
    assert minimal.parities("348192:") == "111011"
    for answer in "=1$ 111011=1$ 000=1$ =0$ 111011=0$ 1$ =1".split():
        assert minimal.reward("348192:", answer) == answer.endswith("=1$")


def test_an_adapter_of_minimal_changes_nothing_at_first():
    linear = torch.nn.Linear(64, 8)
    adapted, x = minimal.LoraLinear(linear, rank=4, alpha=8), torch.randn(3, 64)
    assert torch.equal(adapted(x), linear(x)) and 0.1 < float(adapted.A_RI.detach().max()) <= 64**-0.5


def test_minimal_samples_by_its_temperature_and_ends_with_the_end_token():
    """Nearly at 0 it takes the likeliest token each time."""
    policy = minimal.Transformer(len(minimal.VOCABULARY), 16, 32, num_layers=1, num_heads=2, num_kv_heads=1)
    c = minimal.Settings(temperature=1e-4, max_completion_length=6)
    prompts = minimal.encode(["12:"] * 20)
    (greedy,) = set(map(tuple, minimal.sample(policy, prompts, c)))
    likeliest = policy(torch.tensor([[*prompts[0], *greedy]]))[0].argmax(-1).tolist()
    assert likeliest[-len(greedy) - 1 : -1] == list(greedy)
    drawn = minimal.sample(policy, prompts * 10, replace(c, temperature=1.0))
    assert len(set(map(tuple, drawn))) > 50
    assert all(minimal.END not in completion[:-1] for completion in drawn)
    assert all(len(completion) == 6 or completion[-1] == minimal.END for completion in drawn)


def test_minimal_learns_to_work_answers_out():
    """About 15 seconds. It starts near 60 %: three answers in four are guesses."""
    done = run_command("grpo.minimal")
    assert done.returncode == 0, done.stderr
    before, after = done.stdout.splitlines()[-2:]
    shares = [float(re.search(r"([\d.]+)%", line)[1]) for line in (before, after)]
    assert shares[0] < 70 and shares[1] > 90, done.stdout


def test_minimal_needs_nothing_of_this_program():
    source = (ROOT / "grpo" / "minimal.py").read_text()
    assert not re.search(r"^\s*(from|import) (grpo|rewards|knowledge)", source, re.MULTILINE)
