"""Rewards say what a completion is worth: a number, or "unscorable" with a reason; never an invented number.

A reward's file is imported only when a run uses that reward. This folder may import `knowledge`, and of `grpo` what
lies below the trainer: schema, errors, storage, devices, processes; the commands score.py and audit.py also read rows
and configurations as the trainer does. `grpo` imports this folder. Read in this order:

    registry.py     what a reward is; names to rewards
    own_names.py    users' own functions by name, and where one has failed
    own.py          their calls: what TRL passes, and what they return
    deadline.py     their deadline
    format.py       one <think> block, one <answer> block, perhaps a <confidence>, nothing else
    environment.py  what an environment of the user's says of its completion
    own_words.py    what calls of tools cost, and their names in a row
    exact.py        the answer equals the truth after normalisation
    choice.py       the answer names the letter of the right choice
    overlong.py     DAPO's soft penalty for completions close to the length limit
    boxed.py        what the last \\boxed{} is worth             (mathematics/: whether it equals the truth)
    prompts.py      what a reward's prompt asks for
    outcome/        is an answer right, wrong or a refusal, and what is that worth?
    knowrl/         KnowRL's reward: is the answer right, and does a knowledge base support the reasoning?
    api/            the one client for language models behind an API: the judge and the decomposer
    services.py     checks judge, knowledge base, decomposer and verifier
    scorer.py       rewards at work while other completions are still being generated
    score.py        the command `python -m rewards.score`: any rewards on a file of completions
    attacks.py      dishonest answers
    audit.py        the command `python -m rewards.audit`: do dishonest answers earn as much as honest ones?
"""
