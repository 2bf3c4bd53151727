"""Run a command of this program by its name: python -m grpo COMMAND ...

COMMAND is a module, such as grpo.train, rewards.score or knowledge.build. Where a file rewards.py or knowledge.py lies
in the working directory, `python -m rewards.score` would run that file; `python -m grpo rewards.score` does not.
"""

import re
import runpy
import sys

from grpo.base.errors import CONFIG, UserError, run_main


def main(argv: list[str]) -> None:
    name = argv[0] if argv else ""
    if not re.fullmatch(r"(grpo|rewards|knowledge)\.[a-z_]+", name):
        what = f"{name} is no command" if name else "no command is named"
        raise UserError(
            what, "it is the name of a module", "type for example: python -m grpo rewards.score --help", CONFIG
        )
    del sys.argv[1]
    runpy.run_module(name, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    run_main(main)
