"""Stage 1: its loss by hand, its checkpoints, its end; and what must be in order before it begins."""

import pytest
import torch
from making import ALONE, cases, from_transformers, read_lines, refused, same_tensors, twins, write_rows

from grpo.algorithm.optimizer import Optimizer
from grpo.base.errors import PREFLIGHT
from grpo.config.load import load_config
from grpo.config.options import SftConfig
from grpo.data.prompts import ChatEncoder, load_tokenizer
from grpo.run.run import Run
from grpo.sft import SftTrainer, load_examples, sft
from grpo.train import train

TURNS = [[("user", f"What is {n} + 1?"), ("assistant", f"It is {n + 1}.")] for n in range(12)]


@pytest.fixture
def configure(tmp_path, chat_checkpoint):
    """The configuration of a short run over these conversations, with these keys; it lies in cold.yaml."""

    def configure(turns=TURNS, **keys):
        rows = [{"messages": [{"role": who, "content": text} for who, text in one]} for one in turns]
        (tmp_path / "cold.yaml").write_text(
            f"model_name_or_path: {chat_checkpoint}\ndataset_id_or_path: {write_rows(tmp_path / 'rows.jsonl', rows)}\n"
            f"output_dir: {tmp_path / 'cold'}\nper_device_train_batch_size: 4\nmax_steps: 4\nlearning_rate: 1e-3\n"
            "lora_r: 4\nreport_to: none\ndisable_tqdm: true\n"
        )
        return load_config(tmp_path / "cold.yaml", [f"{name}={value}" for name, value in keys.items()], SftConfig)

    return configure


@pytest.fixture
def run(tmp_path, configure):
    """Runs it, and returns its metrics."""

    def run(turns=TURNS, **keys):
        config, notices = configure(turns, **keys)
        sft(config, notices)
        return read_lines(tmp_path / config.output_dir / "metrics.jsonl")

    return run


def losses_of(chat_checkpoint, *conversations):
    """transformers' negative log-probs of the trained tokens. A conversation: the question, then the answer in two
    parts, of which only the second is trained."""
    model, tokenizer = from_transformers(chat_checkpoint).double(), load_tokenizer(chat_checkpoint)
    losses = []
    for question, before, trained in conversations:
        messages = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        first, second, last = (
            tokenizer(text, add_special_tokens=False)["input_ids"] for text in (prompt, before, trained + "<|im_end|>")
        )
        ids = torch.tensor([*first, *second, *last])
        with torch.no_grad():
            logps = model(ids[None, :-1]).logits[0].log_softmax(-1)
        losses += (-logps.gather(1, ids[1:, None])[-len(last) :, 0]).tolist()
    return losses


def test_the_loss_is_the_mean_negative_log_prob_of_the_answers_tokens(run, chat_checkpoint):
    """All of the data in one step, before any update, against transformers' model on one conversation at a time."""
    steps = run(per_device_train_batch_size=12, max_steps=1)
    losses = losses_of(chat_checkpoint, *[(question[1], "", answer[1]) for question, answer in TURNS])
    assert steps[0]["tokens"] == len(losses) and steps[0]["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)


def test_credit_answer_trains_the_answer_block_alone(run, chat_checkpoint):
    """An answer without the block is trained whole."""
    answers = ("<think>One and one.</think><answer>", "It is 2.</answer>"), ("", "It is 3.")
    turns = [[("user", "What?"), ("assistant", before + trained)] for before, trained in answers]
    (step,) = run(turns, credit="answer", per_device_train_batch_size=2, max_steps=1)
    losses = losses_of(chat_checkpoint, *[("What?", *answer) for answer in answers])
    assert step["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)


def test_answers_of_which_credit_answer_trains_nothing_are_left_out(configure, chat_checkpoint):
    """Their last token is the tag of the block. If there are no others, that is said before the start."""
    turns = [("user", "What?"), ("assistant", "<think>One.</think><answer>2</answer>")]
    config, _ = configure([turns], credit="answer")
    encoder = ChatEncoder(load_tokenizer(chat_checkpoint))
    ((example,), _) = load_examples(config, encoder, 500)
    ids = example.completions[0].ids
    cut = next(end for end in range(len(ids)) if encoder.decode(ids[:end]).endswith("<answer>"))
    limit = len(example.prompt.ids) + cut
    refused(lambda: load_examples(config, encoder, limit), "leaves nothing to train", "1 answers left out, cut before")
    ((example,), _) = load_examples(config, encoder, limit + 1)
    assert example.completions[0].credited_from == cut


@pytest.mark.parametrize(("header", "tools", "answer", "trained"), cases(__file__, "what is trained"))
def test_what_is_trained_is_sought_among_the_tokens(configure, chat_checkpoint, header, tools, answer, trained):
    """The template may have opened the thoughts, and a result is written as a tool would give it: neither is what the
    file says."""
    config, _ = configure([[("user", "What?"), ("assistant", answer)]], credit="answer", tools=tools.split())
    tokenizer = load_tokenizer(chat_checkpoint)
    tokenizer.chat_template = tokenizer.chat_template.replace("assistant\n", "assistant\n" + header)
    (example,), _ = load_examples(config, ChatEncoder(tokenizer), 1000)
    (completion,) = example.completions
    assert tokenizer.decode(completion.ids[completion.credited_from :]).strip() == trained + "<|im_end|>"
    for call in completion.calls:
        start, end = call.span
        assert completion.text[start:end] == tokenizer.decode(completion.ids)[start:end]
        assert completion.text[start:].startswith("<search>") and completion.text[:end].endswith("</result>")


@pytest.mark.parametrize(
    ("warmup", "rates"),
    [({"warmup_ratio": 0.3}, [0, 1 / 2, 1, 2 / 3, 1 / 3]), ({"warmup_steps": 1}, [0, 1, 0.75, 0.5, 0.25])],
)
def test_its_length_and_its_learning_rate(run, warmup, rates):
    """12 examples in steps of 4, for one and a half epochs: 4.5 steps, rounded up; 30 % of 5 are 1.5, rounded up."""
    keys = {"max_steps": -1, "num_train_epochs": 1.5, "lr_scheduler_type": "linear", "warmup_ratio": 0.0, **warmup}
    steps = run(**keys)
    assert [step["learning_rate"] for step in steps] == pytest.approx([1e-3 * rate for rate in rates])
    assert [step["epoch"] for step in steps] == pytest.approx([n / 3 for n in range(1, 6)])


def test_it_learns_and_leaves_a_plot(run, tmp_path):
    steps = run(max_steps=12, learning_rate=1e-2)
    assert steps[-1]["loss"] < 0.8 * steps[0]["loss"]
    assert (tmp_path / "cold" / "loss.png").stat().st_size > 1000
    assert (tmp_path / "cold" / "final" / "adapter_model.safetensors").exists()


def test_a_resumed_run_ends_like_one_that_never_stopped(run, tmp_path):
    whole = run(lr_scheduler_type="constant", output_dir=tmp_path / "whole")
    run(lr_scheduler_type="constant", max_steps=2)
    parts = run(lr_scheduler_type="constant", resume_from_checkpoint="true")
    assert [step["loss"] for step in parts] == [step["loss"] for step in whole]
    assert same_tensors(*(tmp_path / name / "checkpoint-4/state.safetensors" for name in ("cold", "whole")))


def test_a_resumed_run_goes_on_counting_what_it_skipped_and_plots_every_loss(run, monkeypatch):
    plotted, done, step = [], [], Optimizer.step

    def second_fails(optimizer, *arguments):
        done.append(arguments)
        if len(done) == 2:
            optimizer.flat.grad.fill_(torch.inf)
        return step(optimizer, *arguments)

    monkeypatch.setattr(Optimizer, "step", second_fails)
    monkeypatch.setattr("grpo.sft.draw_loss", lambda path, losses: plotted.append(losses))
    run(max_steps=3)
    found = run(max_steps=4, resume_from_checkpoint="true")
    assert [line["skipped_steps"] for line in found] == [0, 1, 1, 1]
    assert plotted[1] == [(line["step"], line["loss"]) for line in found] and plotted[0] == plotted[1][:3]


def test_two_ranks_with_the_same_examples_have_the_loss_of_one(configure, tmp_path):
    found = []
    for world in (1, 2):
        config, notices = configure(output_dir=tmp_path / str(world))
        with Run(config, notices) as held:
            trainer = SftTrainer(config, held)
            trainer.replicas = trainer.learner.replicas = twins(world=1) if world == 2 else ALONE  # the same examples
            trainer.optimizer.flat.sum_grad = lambda world=world, grad=trainer.optimizer.flat.grad: grad.mul_(world)
            trainer.run_step()
            found.append(trainer.summarise_step())
    one, two = found
    assert two["tokens"] == 2 * one["tokens"]
    assert (two["loss"], two["grad_norm"]) == pytest.approx((one["loss"], one["grad_norm"]), rel=1e-5)


@pytest.mark.parametrize(("keys", "what"), [
    ("reward_funcs=correctness judge=api judge_model=m judge_base_url=http://127.0.0.1:9/v1", "has no key"),
    ("reward_funcs=exact answer_field=none", "there is no column none"),
    ("reward_funcs=knowrl judge=offline decomposer=rules verifier=lexical knowledge_base=absent.db", "absent.db"),
], ids=["no key", "no answers", "no base"])  # fmt: skip
def test_what_stage_2_lacks_ends_the_run_before_stage_1(configure, tmp_path, chat_checkpoint, monkeypatch, keys, what):
    monkeypatch.delenv("OPENAI_API_KEY_JUDGE", raising=False)
    questions = write_rows(tmp_path / "questions.jsonl", [{"question": "1 + 1?", "answer": "2", "title": "Sums"}] * 4)
    configure()
    keys += f" dataset_id_or_path={questions} cold_start={tmp_path / 'cold.yaml'}"
    keys += f" model_name_or_path={chat_checkpoint} output_dir={tmp_path / 'rl'} num_generations=4 report_to=none"
    config, notices = load_config(None, keys.split())
    refused(lambda: train(config, notices), what, exit_code=PREFLIGHT)
    assert not (tmp_path / "cold").exists()


def test_only_rank_0_hashes_what_stage_1_is_made_from(configure, monkeypatch):
    """It alone writes that down; the files may be large."""
    hashed = []
    monkeypatch.setattr("grpo.sft.origin_of", hashed.append)
    monkeypatch.setattr("grpo.sft.SftTrainer", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        sft(*configure(), twins(rank=1, is_main=False))
    assert not hashed
