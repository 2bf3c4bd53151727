"""What children of the fault tests are made to do: rewards that tests name `fakes:NAME`, and changes to a child's
program."""

import itertools
import json
import os
import re
import signal
import threading
import time
from pathlib import Path

calls = itertools.count(1)  # of the one reward of a process that counts its groups


def early_letters(prompts, completions, **columns):
    """Share of a completion's tokens with an id below 150: easy to learn for a random model."""
    return [sum(token < 150 for token in ids) / len(ids) for ids in columns["completion_ids"]]


def hanging(prompts, completions, **columns):
    """A reward that never comes back after its third group."""
    if next(calls) > 3:
        time.sleep(3600)
    return early_letters(prompts, completions, **columns)


def alarming(prompts, completions, **columns):
    """A reward that sets alarms of its own for ever, from its third group on."""
    signal.signal(signal.SIGALRM, lambda number, frame: None)
    while next(calls) > 3:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        time.sleep(0.05)
        signal.alarm(0)
    return early_letters(prompts, completions, **columns)


def forgetful(prompts, completions, **columns):
    """Tells secrets, as prints for debugging and the message of some library's error may."""
    secrets = [os.environ.get(name) for name in ("SOME_API_KEY", "A_PLAIN_NAME", "JUDGES_LOGIN")]
    print("told", *secrets, flush=True)
    raise RuntimeError(f"401 for {secrets}")


def drawn(prompts, completions, **columns):
    """Uses every random generator of its process, on rank 1 twice as often: all ranks begin with the same seed, and
    would stay alike."""
    import random

    import numpy
    import torch

    for _ in range(int(os.environ.get("RANK", 0)) * len(completions)):
        random.random(), numpy.random.rand(), torch.rand(())
    return [random.random() + numpy.random.rand() + float(torch.rand(())) for _ in completions]


def gauge(prompts, completions, **columns):
    """Writes down what this process holds: resident memory, threads outside of pools, open files and sockets."""
    import psutil

    process = psutil.Process()
    pooled = sum(re.search(r"_\d+$", thread.name) is not None for thread in threading.enumerate())
    held = {
        "rss_mb": process.memory_info().rss / 2**20,
        "threads": process.num_threads() - pooled,
        "files": process.num_fds(),
        "sockets": sum(one.pid == process.pid for one in psutil.net_connections()),
    }
    with open(os.environ["GAUGE"], "a") as file:
        file.write(json.dumps(held) + "\n")
    return [0.0] * len(completions)


def mixed(prompts, completions, **columns):
    """Differs within each group, and from question to question, even if all completions are equal."""
    answer = columns["answer"][0]
    return [(place + len(answer)) % 3 + 0.1 * int(answer) * place for place in range(len(completions))]


def mixed_on_one_rank(prompts, completions, **columns):
    """Groups of the other rank are all alike, so that they teach nothing."""
    return (
        mixed(prompts, completions, **columns)
        if os.environ["RANK"] == os.environ["MIXED_ON"]
        else [0.0] * len(completions)
    )


def tied(prompts, completions, **columns):
    """Groups of every other question are all alike."""
    return mixed(prompts, completions, **columns) if int(columns["answer"][0]) % 2 else [0.0] * len(completions)


def fails_on_rank_1(prompts, completions, **columns):
    if os.environ["RANK"] == "1":
        raise RuntimeError("boom on rank 1")
    return early_letters(prompts, completions, **columns)


def dies_once(prompts, completions, **columns):
    """Kills the process of rank DIES in its fourth group (DIES_AT), the first time that any process comes there."""
    number, died = next(calls), Path(os.environ["DIED"])
    is_due = os.environ.get("RANK") == os.environ.get("DIES", "1") and number == int(os.environ.get("DIES_AT", 4))
    if is_due and not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return mixed(prompts, completions, **columns)


def loses_files(prompts, completions, **columns):
    """In the second step, deletes the files of the run that the environment names."""
    if next(calls) == 3:
        for name in os.environ["LOST"].split(","):
            os.unlink(name)
    return early_letters(prompts, completions, **columns)


# --- tools ---------------------------------------------------------------------------------------------------------


def hang(name: str) -> None:
    """Never come back, if this is HANGS, and the file AFTER is there."""
    if os.environ.get("HANGS") == name and Path(os.environ["AFTER"]).exists():
        Path(os.environ["GENERATING"]).touch()
        threading.Event().wait()


def search(query: str) -> str:
    """Takes a while with every other query."""
    hang("search")
    time.sleep(0.005 * (len(query) % 2))
    return f"found {query}"


async def shout(query: str) -> str:
    return query + "!"


class closed:
    @staticmethod
    def search(query: str) -> str:
        raise RuntimeError("the library is closed")


class Till:
    def reset(self, question, seed, **row):
        hang("reset")
        self.paid = seed % 5
        return f" Pay {self.paid}."

    def pay(self, amount: int) -> str:
        """Pay.

        Args:
            amount: How much.
        """
        hang("pay")
        self.paid += amount
        return f"{self.paid} paid"

    def step(self, text: str):
        hang("step")
        return "pay more" if self.paid % 3 else None

    def get_reward(self):
        hang("get_reward")
        return self.paid / 10


# --- setups --------------------------------------------------------------------------------------------------------


def wrap(owner, name, around) -> None:
    """Let `around(number, call, *arguments)` stand for a function: which call it is, and what makes it."""
    original, numbers = getattr(owner, name), itertools.count(1)

    def replacement(*arguments, **options):
        return around(next(numbers), lambda: original(*arguments, **options), *arguments)

    setattr(owner, name, replacement)


def short_grace() -> None:
    """A second instead of 20 after a signal."""
    from grpo.run import signals

    signals.GRACE_S = 1.0


def endless_generation() -> None:
    """From its 4th batch on, the sampler takes an hour; a signal's grace is a second."""
    from grpo.engine.sampling.sampler import Sampler

    def slow(number, sample, *_):
        if number > 3:
            Path(os.environ["GENERATING"]).touch()
            for _ in range(360_000):
                time.sleep(0.01)
        return sample()

    wrap(Sampler, "sample", slow)
    short_grace()


def endless_decoding() -> None:
    """From its 4th batch on, the sampler never finds a sequence that has ended; a signal's grace is a second."""
    from grpo.engine.sampling.sampler import Sampler

    def endless(number, sample, sampler, *_):
        while number > 3:
            Path(os.environ["GENERATING"]).touch()
            time.sleep(0.01)
            sampler.before_decoding()
        return sample()

    wrap(Sampler, "sample", endless)
    short_grace()


def slow_save() -> None:
    """Each checkpoint takes a second, or as long as the environment says. Tells when it begins, and of each signal."""
    from grpo.run import checkpoint
    from grpo.run.signals import Signals

    run_dir = []

    def slow(number, write, folder, *_):
        write()
        run_dir.append(folder.parent)
        (folder.parent / "saving").touch()
        time.sleep(float(os.environ.get("SAVE_TAKES_S", 1)))

    def tells(number, handle, *_):
        handle()
        (run_dir[-1] / "signalled").touch()

    wrap(checkpoint, "write_state", slow)
    wrap(Signals, "_on_signal", tells)


def talkative() -> None:
    """Completions of a random model, framed as a trained one would: otherwise there is nothing to judge. Words alone:
    a semicolon would be a list of answers, which is wrong without a judge."""
    from grpo.policy import Policy

    def framed(number, decode, policy, ids):
        return f"<think>So.</think><answer>{ids[0]} {re.sub(r'[^a-z0-9]+', ' ', decode())}</answer>"

    wrap(Policy, "decode", framed)
    short_grace()


def thoughtful() -> None:
    """The same, and each completion states a fact of its own in its thoughts."""
    from grpo.policy import Policy

    def stating(number, frame, policy, ids):
        return frame().replace("So.", f"The number {'-'.join(map(str, ids))} is a town in France.")

    talkative()
    wrap(Policy, "decode", stating)


def steers_the_terminal() -> None:
    """Completions full of escape sequences."""
    from grpo.policy import Policy

    wrap(Policy, "decode", lambda number, decode, *_: f"\x1b]0;pwned\x07\x1b[2J\u202e\x9b{decode()}\r")


def judged() -> None:
    """Each completion has a true and a false sentence, whatever it says."""
    from grpo.algorithm import credit
    from grpo.algorithm.schema import Sentence

    def halves(completion, decode):
        half = len(completion.ids) // 2
        return [Sentence("", 0, half, True), Sentence("", half, 2 * half, False)]

    credit.judged_sentences = halves


def is_bad(number: int) -> bool:
    """Whether the environment names this step, by default the second."""
    return str(number) in os.environ.get("BAD_STEPS", "2").split(",")


def bad_logits() -> None:
    """The log-probs of a bad training step (one micro-batch, no reference) are not finite."""
    import torch

    import grpo.algorithm.logprobs

    def broken(number, score, *_):
        logp_C, entropy_C = score()
        return (logp_C * torch.nan if is_bad(number) else logp_C), entropy_C

    wrap(grpo.algorithm.logprobs, "token_logprobs", broken)


def bad_logits_while_sampling() -> None:
    """In the second step the logits of one row are not finite, in sampling and in training."""
    from grpo.algorithm import logprobs
    from grpo.engine.sampling import decode_step, sampler

    step = []

    def count(number, sample, *_):
        step[:] = [number]
        return sample()

    def spoil(number, draw, logits_BV, *_):
        if step == [2]:
            logits_BV[0] = float("nan")
        return draw()

    def broken(number, score, hidden_CD, *_):
        if step == [2]:
            hidden_CD.data.fill_(float("nan"))
        return score()

    wrap(sampler.Sampler, "sample", count)
    wrap(decode_step, "draw_tokens", spoil)
    wrap(logprobs, "token_logprobs", broken)


def bad_gradient() -> None:
    """One number of the gradient is infinite in a bad step."""
    from grpo.algorithm.optimizer import Optimizer

    def broken(number, step, optimizer, *_):
        if is_bad(number):
            optimizer.flat.grad[3] = float("inf")
        return step()

    wrap(Optimizer, "step", broken)


def dies_in_a_step() -> None:
    """The process is killed in its third step."""
    from grpo.algorithm.rollout import Rollout

    def deadly(number, sample, *_):
        return os.kill(os.getpid(), signal.SIGKILL) if number == 3 else sample()

    wrap(Rollout, "sample", deadly)


def full_logs() -> None:
    """Resumed logs are as large as the disk allows, and TensorBoard's file is, too."""
    import tensorboard.summary.writer.record_writer as record_writer

    import grpo.run.log

    def heavy(number, write, writer, *_):
        write()
        writer._writer.write(b"\0" * 25_000_000)
        writer._writer.flush()

    grpo.run.log._keep_lines = lambda *arguments: None
    wrap(record_writer.RecordWriter, "write", heavy)


def full_disk_under_stdout() -> None:
    os.dup2(os.open("/dev/full", os.O_WRONLY), 1)


def full_disk_under_stderr() -> None:
    os.dup2(os.open("/dev/full", os.O_WRONLY), 2)


def another_torch() -> None:
    from grpo.run import provenance

    wrap(provenance, "version", lambda number, version, name: "2.0.0" if name == "torch" else version())
