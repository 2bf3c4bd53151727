"""Leaving a key out of a file of TRL 0.23 or LLaMA-Factory 0.9.3 means what it means there, or is named here.

peers.yaml holds the defaults that stand in their programs. transformers, on which both are built, is the one installed.
"""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml
from test_config import PATHS, load
from test_foreign import defaults_of
from transformers import TrainingArguments

from grpo.config.foreign import ALIASES, SWITCHES
from grpo.config.options import SftConfig, TrainConfig

PEERS = yaml.safe_load(Path(__file__).with_name("peers.yaml").read_text(encoding="utf-8"))
FILES = {  # of each peer: the stage that reads them, and the line that tells its files from others
    "trl": (TrainConfig, ""),
    "llamafactory": (SftConfig, "template: qwen\n"),
}
KEEPING = "a run here keeps checkpoints, and shows its steps, without being asked"
SAME = "another word for the same"
DEPARTURES = {  # (peer, key) -> what its files get here without that key, and why it is not the peer's default
    ("trl", "gradient_checkpointing"): ("auto", "as few activations are recomputed as memory allows"),
    ("trl", "log_completions"): (True, KEEPING),
    ("trl", "logging_steps"): (1, KEEPING),
    ("llamafactory", "lora_alpha"): (16.0, "null is computed there: twice lora_rank"),
    ("llamafactory", "lora_target"): (None, SAME),
    ("llamafactory", "dataset_dir"): (None, "the folder data is used if it registers data sets"),
    ("llamafactory", "swanlab_project"): (None, "runs of this program go into the project grpo"),
    ("transformers", "activation_checkpointing"): ("auto", SAME),
    ("transformers", "gradient_checkpointing"): ("auto", "as in TRL"),
    ("transformers", "logging_steps"): (1, KEEPING),
    ("transformers", "project"): (None, "runs of this program go into the project grpo"),
    ("transformers", "report_to"): (("tensorboard",), KEEPING),
    ("transformers", "save_steps"): (50, KEEPING),
    ("transformers", "save_total_limit"): (3, KEEPING),
    ("transformers", "resume_from_checkpoint"): (False, SAME),
}
EMPTY = (None, 0, False, "", ())  # what null may mean here


def defaults() -> list[tuple[str, str, object]]:
    """Peer, key and default of every key that is also one here, whatever its name. Those of PATHS must be set."""
    found = [(peer, *item) for peer in FILES for table in PEERS[peer]["files"].values() for item in table.items()]
    found += [("transformers", *item) for item in defaults_of(TrainingArguments).items()]
    keys = {peer: FILES[peer][0].__dataclass_fields__ for peer in FILES}
    keys["transformers"] = keys["llamafactory"]
    return [
        (peer, key, value)
        for peer, key, value in found
        if (ALIASES.get(key, key) in keys[peer] or key in SWITCHES) and ALIASES.get(key, key) not in PATHS
    ]


def test_the_tables_are_of_the_versions_that_are_promised():
    assert PEERS["trl"]["version"].startswith("0.23.") and PEERS["llamafactory"]["version"] == "0.9.3"
    assert {(peer, key) for peer, key, _ in defaults()} > set(DEPARTURES)


@pytest.mark.parametrize(("peer", "key", "value"), defaults())
def test_a_key_left_out_means_its_default_there(tmp_path, peer, key, value):
    """A file with the default written out gives the same configuration as one without the key."""
    kind, mark = FILES.get(peer, FILES["llamafactory"])
    written = asdict(load(tmp_path, f"{mark}{key}: {json.dumps(value)}\n", kind=kind)[0])
    left_out = asdict(load(tmp_path, mark, kind=kind)[0])
    ours = ALIASES.get(key, key)
    if (peer, key) in DEPARTURES:
        assert left_out[ours] == DEPARTURES[peer, key][0]
        assert (written == left_out) == (value is None)  # null means the default there; else it need not be named
    else:
        assert written == left_out and (value is not None or left_out.get(ours) in EMPTY)


def test_a_file_with_every_key_of_trl_0_23_at_its_default_is_read(tmp_path):
    (table,) = PEERS["trl"]["files"].values()
    load(tmp_path, "".join(f"{key}: {json.dumps(value)}\n" for key, value in table.items()))
