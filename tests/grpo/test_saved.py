"""What a path means to a command: a run's directory stands for the model it has written, with the run's config."""

import pytest
import torch
from making import refused

from grpo.base.folders import check_unchanged, write_folder
from grpo.config.load import load_config, to_yaml
from grpo.config.options import SftConfig, TrainConfig
from grpo.run import checkpoint
from grpo.run.saved import find_saved, read_config

STAGE_2 = ["model_name_or_path=m", "dataset_id_or_path=d", "reward_funcs=exact", "system_prompt=Be brief.", "top_p=0.5"]
STAGE_1 = ["model_name_or_path=m", "dataset_id_or_path=d", "system_prompt=Be *brief*.\n\nAlways: yes"]


def run_of(folder, keys=STAGE_2, kind=TrainConfig):
    """The directory of a run, as far as it is read here, before anything is saved."""
    folder.mkdir(parents=True)
    config, _ = load_config(None, [*keys, f"output_dir={folder}"], kind)
    (folder / "config.resolved.yaml").write_text(to_yaml(config), encoding="utf-8")
    (folder / "run_state.json").write_text("{}")
    return folder


def with_result(folder, *keys_and_kind):
    """What the directory of a finished run stands for."""
    (run_of(folder, *keys_and_kind) / "final").mkdir()
    return find_saved(str(folder))


def save(run, step):
    with checkpoint.new_checkpoint(run, step) as folder:
        checkpoint.write_state(folder, {"master": torch.ones(2)}, {"step": step})
        (folder / "config.resolved.yaml").write_text((run / "config.resolved.yaml").read_text())


def test_a_run_stands_for_its_result_or_else_for_its_newest_valid_checkpoint(tmp_path):
    run = run_of(tmp_path / "run")
    refused(lambda: find_saved(str(run)), "has written no model yet", "no valid checkpoint")
    save(run, 2)
    save(run, 10)
    save(run, 11)
    (run / "checkpoint-11" / checkpoint.COUNTERS_FILE).write_text("{ }")
    refused(lambda: find_saved(str(run / "checkpoint-11")), "is damaged", exit_code=6)
    found = find_saved(str(run))
    assert found.name == str(run / "checkpoint-10") and found.config_path == run / "checkpoint-10/config.resolved.yaml"
    (run / "final").mkdir()
    found = find_saved(str(run))
    assert found.name == str(run / "final") and found.config_path == run / "config.resolved.yaml"


def test_a_run_keeps_its_own_prompt_even_if_another_reward_would_bring_one(tmp_path):
    saved = with_result(tmp_path / "run", STAGE_2[:3])
    assert read_config(saved, ["reward_funcs=truthrl"]).system_prompt is None


def test_a_run_of_stage_1_passes_on_how_it_makes_prompts(tmp_path):
    saved = with_result(tmp_path / "sft", STAGE_1, SftConfig)
    typed = ["model_name_or_path=m", "dataset_id_or_path=d", "reward_funcs=exact", "output_dir=o"]
    assert read_config(saved, typed).system_prompt == saved.config().system_prompt == "Be *brief*.\n\nAlways: yes"
    assert read_config(saved, [*typed, "system_prompt=null", "dtype=float64"]).system_prompt is None
    assert read_config(saved, [*typed, "dtype=float64"]).torch_dtype == "float64"


@pytest.mark.parametrize("text", ["", "[", "\0", "[]", "5", "a: [1", "[" * 9999])
def test_a_damaged_configuration_of_a_run_is_told_as_that(tmp_path, text):
    saved = with_result(tmp_path / "run")
    saved.config_path.write_text(text)
    refused(saved.config, "config.resolved.yaml", exit_code=2)


def test_a_folder_with_folders_or_with_a_foreign_manifest_is_intact(tmp_path):
    """Tokenizers with several chat templates keep them in a folder of their own."""
    with write_folder(tmp_path / "final") as folder:
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / "tool_use.jinja").write_text("{{ messages }}")
    check_unchanged(tmp_path / "final")
    (tmp_path / "final" / "additional_chat_templates" / "tool_use.jinja").write_text("{{ messages[0] }}")
    refused(lambda: check_unchanged(tmp_path / "final"), "damaged, or was changed", "tool_use.jinja has", exit_code=6)
    (tmp_path / "manifest.json").write_text('{"version": 2}')
    check_unchanged(tmp_path)
    (tmp_path / "manifest.json").write_text('{"files": ')
    refused(lambda: check_unchanged(tmp_path), "damaged, or was changed", "manifest.json cannot be read", exit_code=6)
