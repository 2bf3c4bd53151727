"""Every numeric key at its ends: it is accepted as it is written, or refused by its name, and never a traceback."""

import math
from typing import get_args, get_type_hints

import pytest

from grpo.base.errors import UserError
from grpo.config.load import load_config
from grpo.config.options import SftConfig, TrainConfig

NEEDED = ("model_name_or_path=m", "dataset_id_or_path=d", "output_dir=o")
EXTREMES = "0 -1 -0.0 1e-320 1e-46 0.5 1e38 1e39 1e400 .nan -.inf true 1e null".split()
EXTREMES += [str(2**62), str(2**63), "9" * 400, "{a: 1}", ""]
NO_LIMIT = {"save_total_limit": 0, "max_prompt_length": 10**6, "max_length": 10**6}  # what null means, as in TRL


def numeric(kind):
    hints = get_type_hints(kind)
    return [
        name
        for name, hint in hints.items()
        if {int, float, tuple[int, ...], tuple[float, ...]} & {hint, *get_args(hint)}
    ]


KEYS = [(kind, name) for kind in (TrainConfig, SftConfig) for name in numeric(kind)]


def load(kind, *overrides):
    needed = [*NEEDED, "reward_funcs=[math]"] if kind is TrainConfig else NEEDED
    return load_config(None, [*needed, *overrides], kind)[0]


@pytest.mark.parametrize("kind, name", KEYS, ids=str)
def test_a_number_is_taken_as_written_or_refused_by_name(kind, name):
    usual = getattr(load(kind), name)
    for written in EXTREMES:
        try:
            found = getattr(load(kind, f"{name}={written}"), name)
        except UserError as error:
            assert error.exit_code == 2 and name in error.why and len(error.why) < 2000, (written, error)
            continue
        if written == "null":
            assert found == NO_LIMIT.get(name, usual)
            continue
        if name == "warmup_steps" and 0 < float(written) < 1:  # TRL's way to write a share
            assert found == 0 and load(kind, f"{name}={written}").warmup_ratio == float(written)
            continue
        for item in found if isinstance(found, tuple) else (found,):
            assert math.isfinite(item) and type(item) in (int, float), (written, found)
            is_all = written == "-1" and item == 0  # as other tools write it
            assert item == float(written) or is_all, (written, found)
