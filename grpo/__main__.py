"""Run a command of this program by its name: python -m grpo COMMAND ...

    grpo.minimal       all of GRPO, in 15 seconds
    grpo.doctor        check a configuration
    grpo.sft           stage 1: supervised fine-tuning
    grpo.train         stage 2: GRPO
    grpo.evaluate      measure how well a model answers, or compare two
    grpo.generate      answer questions
    grpo.export        write a model for other programs
    grpo.explain       say what went wrong in a run
    grpo.report        show a run as one page
    grpo.replay        make a step of a run again
    rewards.score      grade answers
    rewards.audit      try dishonest answers on rewards
    knowledge.build    make a knowledge base
    knowledge.search   search one
    knowledge.verify   check one

Each is a module: `python -m grpo.train` is the same. Where a file rewards.py or knowledge.py lies in the working
directory, `python -m rewards.score` would run that file; `python -m grpo rewards.score` does not. --help says more.
"""

import re
import runpy
import sys

from grpo.base.errors import CONFIG, UserError, run_main


def main(argv: list[str]) -> None:
    name = argv[0] if argv else ""
    if name in ("", "-h", "--help"):
        print(__doc__.rstrip())
        return
    if not re.fullmatch(r"(grpo|rewards|knowledge)\.[a-z_]+", name):
        raise UserError(
            f"{name} is no command", "a command is the name of a module", "`python -m grpo` lists them", CONFIG
        )
    del sys.argv[1]
    runpy.run_module(name, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    run_main(main)
