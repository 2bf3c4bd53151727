"""Rewards with TRL's signature, as a user would write them; tests name them `reward_functions:NAME`."""

import os
import signal


def early_letters(prompts, completions, **columns):
    """Share of a completion's tokens with an id below 150: easy to learn for a random model."""
    return [sum(token < 150 for token in ids) / len(ids) for ids in columns["completion_ids"]]


def late_letters(prompts, completions, **columns):
    return [-value for value in early_letters(prompts, completions, **columns)]


def first_batch_only(prompts, completions, **columns):
    """Tells completions apart in the first step of EASY's four groups, and never again."""
    first_batch_only.calls += 1
    return early_letters(prompts, completions, **columns) if first_batch_only.calls <= 4 else [0.0] * len(completions)


first_batch_only.calls = 0


def half_unscorable(prompts, completions, **columns):
    return [None if len(text) % 2 else 1.0 + index for index, text in enumerate(completions)]


def wrong_length(prompts, completions, **columns):
    return [1.0]


def not_a_number(prompts, completions, **columns):
    return [float("nan")] * len(completions)


def raises(prompts, completions, **columns):
    raise RuntimeError("boom")


def stops_the_run(prompts, completions, **columns):
    """Sends SIGTERM to this process when the environment says that this many groups have been graded."""
    stops_the_run.calls += 1
    if stops_the_run.calls == int(os.environ.get("STOP_AFTER_GROUPS", 0)):
        os.kill(os.getpid(), signal.SIGTERM)
    return early_letters(prompts, completions, **columns)


stops_the_run.calls = 0


def no_kwargs(prompts, completions):
    return [0.0] * len(completions)


def never_scorable(prompts, completions, **columns):
    return [None] * len(completions)


def always_zero(prompts, completions, **columns):
    return [0.0] * len(completions)


def by_question(prompts, completions, **columns):
    """Tells questions apart, and not the completions of one."""
    return [float(answer) for answer in columns["answer"]]
