"""What children of the fault tests are made to do: rewards that tests name `fakes:NAME`, and changes to a child's
program."""

import json
import os
import re
import signal
import threading
import time
from contextlib import suppress


def early_letters(prompts, completions, **columns):
    """Share of a completion's tokens with an id below 150: easy to learn for a random model."""
    return [sum(token < 150 for token in ids) / len(ids) for ids in columns["completion_ids"]]


def hanging(prompts, completions, **columns):
    """A reward that never comes back after its third group."""
    hanging.calls += 1
    if hanging.calls > 3:
        time.sleep(3600)
    return early_letters(prompts, completions, **columns)


hanging.calls = 0


def forgetful(prompts, completions, **columns):
    """Tells a secret, as the message of some library's error may."""
    raise RuntimeError(f"401 for the key {os.environ['SOME_API_KEY']}")


def drawn(prompts, completions, **columns):
    """Uses every random generator of its process, on rank 1 twice as often: all ranks begin with the same seed, and
    would stay alike."""
    import random

    import numpy
    import torch

    for _ in range(int(os.environ.get("RANK", 0)) * len(completions)):
        random.random(), numpy.random.rand(), torch.rand(())
    return [random.random() + numpy.random.rand() + float(torch.rand(())) for _ in completions]


def not_finite(prompts, completions, **columns):
    """NaN or Inf for the groups that the environment numbers."""
    not_finite.calls += 1
    bad = {int(n) for n in os.environ["BAD_GROUPS"].split(",")}
    if not_finite.calls in bad:
        return [float(os.environ["BAD_VALUE"])] * len(completions)
    return early_letters(prompts, completions, **columns)


not_finite.calls = 0


def gauge(prompts, completions, **columns):
    """Writes down what this process holds: resident memory, threads outside of pools, open files and sockets."""
    with open("/proc/self/status") as file:
        found = dict(line.split(":", 1) for line in file)
    files, pooled = [], sum(re.search(r"_\d+$", thread.name) is not None for thread in threading.enumerate())
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # another thread may close one meanwhile
            files.append(os.readlink(f"/proc/self/fd/{name}"))
    held = {
        "rss_mb": int(found["VmRSS"].split()[0]) / 1024,
        "threads": int(found["Threads"]) - pooled,
        "files": len(files),
        "sockets": sum(name.startswith("socket") for name in files),
    }
    with open(os.environ["GAUGE"], "a") as file:
        file.write(json.dumps(held) + "\n")
    return [0.0] * len(completions)


def mixed_on_rank_0(prompts, completions, **columns):
    """Groups of rank 1 are all alike, so that dynamic sampling keeps none of them."""
    return mixed(prompts, completions, **columns) if os.environ["RANK"] == "0" else [0.0] * len(completions)


def mixed(prompts, completions, **columns):
    """Differs within each group, and from question to question, even if all completions are equal."""
    answer = columns["answer"][0]
    return [(place + len(answer)) % 3 + 0.1 * int(answer) * place for place in range(len(completions))]


def fails_on_rank_1(prompts, completions, **columns):
    if os.environ.get("RANK") == "1":
        raise RuntimeError("boom on rank 1")
    return early_letters(prompts, completions, **columns)


# --- setups --------------------------------------------------------------------------------------------------------


def short_grace() -> None:
    """A second instead of 20 after a signal."""
    from grpo.run import signals

    signals.GRACE_S = 1.0


def endless_generation() -> None:
    """From its 4th batch on, the sampler takes an hour; a signal's grace is a second."""
    from grpo.sampling.sampler import Sampler

    sample, calls = Sampler.sample, []

    def slow(self, *arguments, **options):
        calls.append(1)
        if len(calls) > 3:
            open(os.environ["GENERATING"], "w").close()
            for _ in range(360_000):
                time.sleep(0.01)
        return sample(self, *arguments, **options)

    Sampler.sample = slow
    short_grace()


def endless_decoding() -> None:
    """From its 4th batch on, the sampler never finds a sequence that has ended; a signal's grace is a second."""
    from grpo.sampling.sampler import Sampler

    sample, calls = Sampler.sample, []

    def endless(self, *arguments, **options):
        calls.append(1)
        while len(calls) > 3:
            open(os.environ["GENERATING"], "w").close()
            time.sleep(0.01)
            self.between()
        return sample(self, *arguments, **options)

    Sampler.sample = endless
    short_grace()


def endless_generation_on_rank_1() -> None:
    endless_generation() if os.environ["RANK"] == "1" else short_grace()


def slow_save() -> None:
    """Each checkpoint takes a second, or as long as the environment says. Tells when it begins, and of each signal."""
    from grpo.run import checkpoint
    from grpo.run.signals import Signals

    write, handle, saved = checkpoint.write_state, Signals._on_signal, []

    def slow(folder, *arguments):
        write(folder, *arguments)
        saved.append(folder.parent)
        open(folder.parent / "saving", "w").close()
        time.sleep(float(os.environ.get("SAVE_TAKES_S", 1)))

    def tells(self, *arguments):
        handle(self, *arguments)
        open(saved[-1] / "signalled", "w").close()

    checkpoint.write_state, Signals._on_signal = slow, tells


def counts_what_it_sends() -> None:
    """Writes a line per step: the bytes of tensors that this process sends to shards, or to replicas, by collective;
    and how long each prompt and its answers are. Numbers of a step, which are float64, do not count."""
    import torch.distributed as dist

    from grpo.device import peers
    from grpo.run.guard import Guard

    sent, running, run_step = {}, [], Guard.run_step

    def count(module, name, size):
        collective = getattr(module, name)

        def call(*tensors, group=None, **more):
            if running:
                shard = running[0].ranks.shard
                key = f"{'shards' if shard.world > 1 and group is shard.group else 'replicas'} {name}"
                sent[key] = sent.get(key, 0) + size(*tensors, dist.get_world_size(group))
            return collective(*tensors, group=group, **more)

        setattr(module, name, call)

    def all_but_own(large, small, world):
        return abs(large.nbytes - small.nbytes)

    def around_a_ring(tensor, world):
        return 2 * (world - 1) / world * tensor.nbytes * (tensor.itemsize == 4)

    def step(guard):
        sent.clear()
        running.append(guard.trainer)
        run_step(guard)
        running.clear()
        groups = guard.trainer.rollout.groups
        lengths = [(len(group.prompt.ids), [len(one.ids) for one in group.completions]) for group in groups]
        with open(f"{os.environ['SENT']}.{os.environ['RANK']}", "a") as file:
            file.write(json.dumps([sent, lengths]) + "\n")

    count(peers, "reduce_scatter_flat", all_but_own)
    count(peers, "all_gather_flat", all_but_own)
    count(dist, "all_reduce", around_a_ring)
    Guard.run_step = step


def talkative() -> None:
    """Completions of a random model, framed as a trained one would: otherwise there is nothing to judge. Words alone:
    a semicolon would be a list of answers, which is wrong without a judge."""
    from grpo.model.policy import Policy

    decode = Policy.decode
    Policy.decode = lambda self, ids: (
        f"<think>So.</think><answer>{ids[0]} {re.sub(r'[^a-z0-9]+', ' ', decode(self, ids))}</answer>"
    )
    short_grace()


def thoughtful() -> None:
    """The same, and each completion states a fact of its own in its thoughts."""
    talkative()
    from grpo.model.policy import Policy

    frame = Policy.decode
    Policy.decode = lambda self, ids: frame(self, ids).replace(
        "So.", f"The number {'-'.join(map(str, ids))} is a town in France."
    )


def judged() -> None:
    """Each completion has a true and a false sentence, whatever it says."""
    import grpo.rollout
    from grpo.base.schema import Sentence

    def halves(completion, decode):
        half = len(completion.ids) // 2
        return [Sentence("", 0, half, True), Sentence("", half, 2 * half, False)]

    grpo.rollout.judged_sentences = halves


def bad_logits() -> None:
    """The log-probs of the second training step (one micro-batch, no reference) are not finite."""
    import torch

    import grpo.logprobs

    score, calls = grpo.logprobs.token_logprobs, []

    def broken(*arguments, **options):
        calls.append(1)
        logp_C, entropy_C = score(*arguments, **options)
        return (logp_C * torch.nan if len(calls) == 2 else logp_C), entropy_C

    grpo.logprobs.token_logprobs = broken


def bad_logits_on_rank_1() -> None:
    if os.environ["RANK"] == "1":
        bad_logits()


def bad_logits_while_sampling() -> None:
    """In the second step the logits of one row are not finite, in sampling and in training."""
    import grpo.logprobs
    from grpo.sampling import decode_step, sampler

    draw, sample, score = decode_step.draw_tokens, sampler.Sampler.sample, grpo.logprobs.token_logprobs
    step = []

    def count(*arguments, **options):
        step.append(1)
        return sample(*arguments, **options)

    def spoil(logits_BV, *arguments):
        if len(step) == 2:
            logits_BV[0] = float("nan")
        return draw(logits_BV, *arguments)

    def broken(hidden_CD, *arguments):
        return score(hidden_CD * float("nan") if len(step) == 2 else hidden_CD, *arguments)

    decode_step.draw_tokens, sampler.Sampler.sample, grpo.logprobs.token_logprobs = spoil, count, broken


def bad_gradient() -> None:
    """One number of the gradient is infinite in the steps that the environment names, by default the second."""
    from grpo.optim import Optimizer

    step, calls, bad = Optimizer.step, [], os.environ.get("BAD_STEPS", "2").split(",")

    def broken(self, *arguments):
        calls.append(1)
        if str(len(calls)) in bad:
            self.grad[3] = float("inf")
        return step(self, *arguments)

    Optimizer.step = broken


def dies_in_a_step() -> None:
    """Rank 1 is killed in its third step."""
    from grpo.rollout import Rollout

    sample = Rollout.sample

    def deadly(self, step):
        if step == 2 and os.environ.get("RANK") == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        return sample(self, step)

    Rollout.sample = deadly


def full_logs() -> None:
    """Resumed logs are as large as the disk allows, and TensorBoard's file is, too."""
    import tensorboard.summary.writer.record_writer as record_writer

    import grpo.run.log

    grpo.run.log._keep_lines = lambda *arguments: None
    write = record_writer.RecordWriter.write

    def heavy(self, data):
        write(self, data)
        self._writer.write(b"\0" * 25_000_000)
        self._writer.flush()

    record_writer.RecordWriter.write = heavy


def steers_the_terminal() -> None:
    """Completions full of escape sequences."""
    from grpo.model.policy import Policy

    decode = Policy.decode
    Policy.decode = lambda self, ids: f"\x1b]0;pwned\x07\x1b[2J\u202e\x9b{decode(self, ids)}\r"


def full_disk_under_the_tokenizer() -> None:
    """The limit on the size of files is low while the tokenizer is saved, from its second time on."""
    import resource

    from transformers import PreTrainedTokenizerBase

    save, calls = PreTrainedTokenizerBase.save_pretrained, []

    def limited(self, *arguments, **options):
        calls.append(1)
        if len(calls) > 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
        try:
            return save(self, *arguments, **options)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    PreTrainedTokenizerBase.save_pretrained = limited


def prints_what_it_was_told(prompts, completions, **columns):
    """A reward that repeats its configuration's secrets in its errors, on stdout and in its reasons."""
    print("told", os.environ["A_PLAIN_NAME"], flush=True)
    raise RuntimeError(f"it was {os.environ['A_PLAIN_NAME']} and {os.environ['JUDGES_LOGIN']}")


def loses_files(prompts, completions, **columns):
    """In the second step, deletes the files of the run that the environment names."""
    loses_files.calls += 1
    if loses_files.calls == 3:
        for name in os.environ["LOST"].split(","):
            os.unlink(os.path.join(os.environ["RUN_DIR"], name))
    return early_letters(prompts, completions, **columns)


loses_files.calls = 0


def dies_once(prompts, completions, **columns):
    """Kills the process of rank DIES in its fourth group (DIES_AT), the first time that any process comes there."""
    dies_once.calls += 1
    is_due = os.environ.get("RANK") == os.environ.get("DIES", "1")
    is_due = is_due and dies_once.calls == int(os.environ.get("DIES_AT", 4))
    if is_due and not os.path.exists(os.environ["DIED"]):
        open(os.environ["DIED"], "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return mixed(prompts, completions, **columns)


dies_once.calls = 0


def full_disk_under_stdout() -> None:
    os.dup2(os.open("/dev/full", os.O_WRONLY), 1)


def full_disk_under_stderr() -> None:
    os.dup2(os.open("/dev/full", os.O_WRONLY), 2)


def another_torch_on_rank_1() -> None:
    from grpo.run import provenance

    version = provenance.version
    if os.environ["RANK"] == "1":
        provenance.version = lambda name: "2.0.0" if name == "torch" else version(name)


def another_program_on_rank_1() -> None:
    from grpo.run import provenance

    if os.environ["RANK"] == "1":
        provenance.PACKAGES = ("grpo",)


def counts_what_is_sent() -> None:
    """Writes, after each step, the bytes of every tensor that was summed and of all that was gathered."""
    import pickle

    import torch.distributed as dist

    from grpo.device import peers
    from grpo.run.run import Run

    report, sent = Run.report_step, []

    def counted(module, name, size_of) -> None:
        send = getattr(module, name)

        def counting(*arguments, **options):
            sent.append(size_of(*arguments))
            return send(*arguments, **options)

        setattr(module, name, counting)

    counted(dist, "all_reduce", lambda tensor: tensor.nbytes)
    counted(dist, "all_gather_object", lambda values, value: len(pickle.dumps(value)))
    counted(peers, "reduce_scatter_flat", lambda part, tensor: tensor.nbytes)
    counted(peers, "all_gather_flat", lambda tensor, part: tensor.nbytes)

    def written(self, step, metrics, *arguments):
        if self.ranks.is_main:
            with open(os.environ["SENT"], "a") as file:
                file.write(json.dumps(sent) + "\n")
        sent.clear()
        return report(self, step, metrics, *arguments)

    Run.report_step = written
