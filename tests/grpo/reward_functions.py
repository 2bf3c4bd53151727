"""Rewards with TRL's signature, as a user would write them; tests name them `reward_functions:NAME`."""

import os
import signal


def early_letters(prompts, completions, **columns):
    """Share of a completion's tokens with an id below 150: easy to learn for a random model."""
    return [sum(token < 150 for token in ids) / len(ids) for ids in columns["completion_ids"]]


def first_batch_only(prompts, completions, **columns):
    """Tells completions apart in the first step of EASY's four groups, and never again."""
    first_batch_only.calls += 1
    return early_letters(prompts, completions, **columns) if first_batch_only.calls <= 4 else [0.0] * len(completions)


first_batch_only.calls = 0


def tied(prompts, completions, **columns):
    """Every other group is all alike."""
    tied.calls += 1
    return early_letters(prompts, completions, **columns) if tied.calls % 2 else [0.0] * len(completions)


tied.calls = 0


def raises(prompts, completions, **columns):
    raise RuntimeError("boom")


def stops_the_run(prompts, completions, **columns):
    """Sends SIGTERM to this process when the environment says that this many groups have been graded."""
    stops_the_run.calls += 1
    if stops_the_run.calls == int(os.environ.get("STOP_AFTER_GROUPS", 0)):
        os.kill(os.getpid(), signal.SIGTERM)
    return early_letters(prompts, completions, **columns)


stops_the_run.calls = 0


def always_zero(prompts, completions, **columns):
    return [0.0] * len(completions)
