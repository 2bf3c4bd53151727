"""`python -m grpo.doctor`."""

from grpo.doctor.command import main
from grpo.errors import run_main

if __name__ == "__main__":
    run_main(main)
