"""Every benchmark runs at a tiny size, with its peer if that is installed, and ends in one line of JSON that the report
reads."""

import importlib
import json
import re
import sys
from types import SimpleNamespace

import pytest
import torch
from commands import ROOT, python
from making import make_group, read_lines

from bench import ceilings, decode, models, record, report, timing, whole_steps, workload
from grpo.engine.device.draw import SamplingParams
from grpo.engine.sampling.sampler import Sampler
from grpo.report import plot

RUNS = {  # a benchmark and its options -> a package that it needs
    "sampler --peer hf": "transformers",
    "sampler --peer ctranslate2 --dtype float32": "ctranslate2",
    "sampler --peer llama.cpp --dtype float32": "xllamacpp",
    "sampler --peer none": "torch",
    "logprob --peer torch": "torch",
    "logprob --peer none": "torch",
    "train_step --peer peft": "peft",
    "train_step --peer none": "torch",
    "whole_steps --peer trl": "trl",
    "whole_steps --profile --shapes math --mean-length 3": "torch",
    "knowledge --peer rank_bm25": "rank_bm25",
    "knowledge --peer none": "torch",
    "decode --profile": "torch",
}


def measure(run):
    """Run a benchmark with these options at its tiny size."""
    name, *options = run.split()
    importlib.import_module(f"bench.{name}").main(["--smoke", *options])


def last_line(said):
    return json.loads(said.splitlines()[-1])


LACKING = {  # a benchmark with its options -> what is said where there is neither a GPU nor a peer
    "decode --device cuda": "torch finds no GPU",
    "whole_steps --peer trl": "trl needs trl",
    "knowledge --peer rank_bm25": "rank_bm25 needs rank_bm25",
}


@pytest.mark.parametrize("run", LACKING)
def test_what_is_not_there_is_named_before_anything_is_measured(monkeypatch, capsys, run):
    monkeypatch.setattr(record, "find_spec", lambda package: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as stopped:
        measure(run)
    assert stopped.value.code == 2 and LACKING[run] in capsys.readouterr().err


@pytest.mark.parametrize("run", RUNS)
def test_a_benchmark_runs_and_ends_in_json(capfd, run):
    pytest.importorskip(RUNS[run])
    measure(run)
    said, name = capfd.readouterr().out, run.split()[0]
    row = last_line(said)
    assert row["bench"] == name
    assert {"cpu", "cores", "gpu", "commit", "versions"} <= row["machine"].keys()
    peer = row["options"]["peer"]
    for case in row["cases"]:
        assert (case.get("ratio") is not None) == (peer != "none"), "a ratio stands for a comparison"
        assert bool(case.get("tokens_per_s")) == (name != "knowledge"), "a search has no tokens"
    checks = row["checks"]
    assert all(value for check, value in checks.items() if "judged all" in check)
    assert all(value < 1e-4 for check, value in checks.items() if "logp_difference_max" in check)
    for case in row["cases"] if name in ("train_step", "logprob") else ():
        found = [value for check, value in checks.items() if check.startswith(case["name"])]
        assert len(found) == len(case["seconds"]), "each side has its mean log-prob"
        assert found == pytest.approx(found[:1] * len(found), rel=1e-2)
    if "--profile" in run:
        assert row["profiles"] and all(row["profiles"].values())
        assert all(0 < case["ceiling_share"] < 1 for case in row["cases"])


def small_model(dtype):
    """What the ceilings need of a model: its sizes, dtype and device."""
    config = SimpleNamespace(
        num_layers=1, hidden_size=2, intermediate_size=3, num_heads=1, num_kv_heads=1, head_dim=2, vocab_size=5
    )
    return SimpleNamespace(config=config, shape=config, build=SimpleNamespace(dtype=dtype, device="cpu"))


def test_the_floor_of_a_step_by_hand():
    """One layer of width 2 with one head, an MLP of 3, five tokens: 34 weights and 10 of the head, 8 bytes of keys and
    values per token. The machine moves a byte per second and computes an operation per second."""
    model = small_model(torch.bfloat16)
    peak = {"copy_gb_per_s": 1e-9, "bfloat16_tflops": 1e-12}
    assert ceilings.decode_floor(model, 1, 3, peak) == pytest.approx(88 + 24)  # memory; 88 operations
    assert ceilings.decode_floor(model, 2, 6, peak) == pytest.approx(176)  # arithmetic; 136 bytes
    group = make_group((7, 7), [8], [8, 8, 8])  # two tokens, completions of one and of three: 4 packed, 4 scored
    work, packed = workload.work_of([group]), workload.packed_tokens([group])
    assert (work.lengths, packed) == ([1, 3], 4)
    forward = 2 * (4 * 34 + 4 * 10)
    prefill = 2 * 34  # of the prompt but its last token
    wanted = {"generate": prefill + 176 + (88 + 24) + (88 + 32), "reference": forward, "train": 2 * forward}
    assert ceilings.step_floors(model, work, packed, peak) == pytest.approx(wanted)


def test_a_copy_moves_the_bytes_that_it_reads_and_those_that_it_writes(monkeypatch):
    monkeypatch.setattr(ceilings, "median_seconds", lambda *_: 0.5)
    found = ceilings.peaks(SimpleNamespace(smoke=True, device="cpu", dtype="bfloat16"))
    assert found["copy_gb_per_s"] == pytest.approx(2 * 2**20 / 0.5 / 1e9)
    assert found["float32_tflops"] == found["bfloat16_tflops"] == pytest.approx(2 * 256**3 / 0.5 / 1e12)


def test_completions_end_after_about_as_many_tokens_as_asked():
    model = models.random_decoder("tiny", models.build_of(SimpleNamespace(dtype="float32", device="cpu"), rank=4), 12)
    done = Sampler(model, [0]).sample([[5, 6, 7]] * 80, 1, SamplingParams(80), list(range(80)))
    lengths = [len(completion.ids) for (completion,) in done]
    assert 6 <= sum(lengths) / 80 <= 24
    assert len(set(lengths)) > 15


def test_every_benchmark_is_tested():
    files = [path for path in (ROOT / "bench").glob("*.py") if "results.finish()" in path.read_text(encoding="utf-8")]
    assert {path.stem for path in files} == {run.split()[0] for run in RUNS}


@pytest.mark.parametrize("has_units", [False, True])
def test_rows_of_several_benchmarks_go_to_one_file_and_the_report_replaces_the_table(
    capfd, tmp_path, monkeypatch, has_units
):
    """A row for each case and each check. Targets are those of machines with units for bfloat16."""
    found = {"float32_tflops": 1.0, "bfloat16_tflops": 0.5 + has_units, "copy_gb_per_s": 1.0}
    monkeypatch.setattr(ceilings, "peaks", lambda options: found)
    file, readme = tmp_path / "elsewhere" / "rows.jsonl", tmp_path / "README.md"
    for name in ("decode", "logprob"):
        measure(f"{name} --save {file}")
    rows = read_lines(file)
    assert [row["bench"] for row in rows if row["cases"]] == ["decode"] * 3 + ["logprob"] * 2
    assert [row["bench"] for row in rows if row["checks"]] == ["logprob"] * 2
    assert "save" not in rows[0]["options"]
    # rows of a trial do not count, so these say that they are none; and each stands twice
    file.write_text(file.read_text().replace('"smoke": true', '"smoke": false') * 2)
    readme.write_text("before\n<!-- bench -->\nold\n<!-- /bench -->\nafter\n")
    capfd.readouterr()
    report.main(["--results", str(file), "--readme", str(readme)])
    assert last_line(capfd.readouterr().out)["cases"] == 5
    text = readme.read_text()
    assert re.match(r"(?s)before\n.*\nafter\n$", text) and "old" not in text
    assert text.count("| logprob, cpu, ") == 2
    targets = [line.split(" | ")[7] for line in text.splitlines() if line.startswith(("| decode", "| logprob"))]
    wanted = ["1.3 ×", "2 ×", "70 %", "70 %", "80 %"] if has_units else [""] * 5
    assert sorted(targets) == wanted, "of the peer's speed, and of the ceiling"


def stored_row(commit, cases, bench="sampler", **options):
    """A row as it is stored, with our seconds of each case."""
    seconds = [{"name": name, "seconds": {"ours": {"median": spent}}} for name, spent in cases.items()]
    machine = {"commit": commit, "gpu": None, "cpu": "a CPU", "cores": 2, "versions": {"torch": "2"}}
    return {
        "bench": bench,
        "date": "2026-11-22",
        "options": {"smoke": False, "device": "cpu"} | options,
        "cases": seconds,
        "machine": machine,
    }


def test_the_report_shows_each_case_as_it_was_measured_last():
    """In any order of the models; a trial does not count, and what has the real shape stands first."""
    old, new = stored_row("old", {"31m": 9.0, "smollm2": 9.0}), stored_row("new", {"31m": 1.0})
    beside = [stored_row("new", {"31m": 5.0}, device="cuda"), stored_row("old", {"31m": 6.0}, bench="train_step")]
    trials = [stored_row("newer", {"31m": 8.0}, smoke=True), stored_row("newer", {})]
    assert [tuple(report.cells(*found)[:3]) for found in report.newest([old, *beside, new, *trials])] == [
        ("sampler, cpu", "smollm2", "9.00 s"),
        ("sampler, cpu", "31m", "1.00 s"),
        ("sampler, cuda", "31m", "5.00 s"),
        ("train_step, cpu", "31m", "6.00 s"),
    ]


def test_rows_that_are_of_no_benchmark_are_left_out_with_a_note(capfd, tmp_path):
    """Those of an exam or of another program, and a row that was cut when its benchmark was killed."""
    own = json.dumps(stored_row("abc", {"a": 1.0}) | {"checks": {}})
    others = ['{"seed": 42, "steps": 20, "arms": {}}', "[1]", own[:40]]
    (tmp_path / "own.jsonl").write_text(own)
    (tmp_path / "mixed.jsonl").write_text("\n".join([*others, own]))
    report.main(["--results", str(tmp_path)])
    said = capfd.readouterr()
    assert last_line(said.out)["cases"] == 1
    assert "mixed.jsonl: left out 3 of 4 rows" in said.err and "own.jsonl" not in said.err
    with pytest.raises(SystemExit) as end:
        report.main(["--results", str(tmp_path / "nowhere")])
    assert end.value.code == 2 and "there is no " in capfd.readouterr().err


def test_repeats_take_turns_and_ratios_are_paired():
    order = []
    timing.interleave({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 3)
    assert order == [*"ab", *"ab", *"ba", *"ab"]
    case = timing.make_case("sums", {"ours": [1.0, 2.0, 1.0], "peer": [3.0, 4.0, 5.0]}, tokens=12, floor=0.5)
    assert (case["ratio"], case["ratio_range"], case["ceiling_share"]) == (3.0, [2.0, 5.0], 0.5)


def test_a_case_has_the_seconds_of_one_call_and_the_ratio_to_the_fastest_peer(monkeypatch):
    """Each side repeats its work four times in a run."""
    clock = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: clock.seconds))

    def side(seconds):
        return lambda: setattr(clock, "seconds", clock.seconds + seconds)

    sides = {"ours": side(2.0), "slow": side(12.0), "fast": side(6.0)}
    kept = record.Results("sums", SimpleNamespace(repeats=3, device="cpu", save=None))
    case = kept.compare("sums", sides, tokens=3, times=4)
    found = {name: spread["median"] for name, spread in case["seconds"].items()}
    assert found == {"ours": 0.5, "slow": 3.0, "fast": 1.5}
    assert case["seconds"]["fast"]["range"] == [1.5, 1.5]
    assert (case["peer"], case["ratio"], case["ratio_range"]) == ("fast", 3.0, [3.0, 3.0])
    assert case["tokens_per_s"] == {"ours": 6.0, "slow": 1.0, "fast": 2.0}


def test_the_warm_up_does_not_count_and_ratios_pair_each_step_with_the_one_after(monkeypatch):
    ours = whole_steps.Ours(SimpleNamespace(), "cpu")
    clock = iter([0.0, 9.0, 10.0, 18.0, 20.0, 24.0])  # our warm-up, then two of TRL's steps with one of ours after each
    ours.step = lambda: ours.seconds.append({0: 90.0, 1: 80.0, 2: 1.0, 3: 4.0}[len(ours.seconds)])
    monkeypatch.setattr(whole_steps.timing, "now", lambda device: next(clock))
    callbacks = []

    def train():
        for _ in range(3):
            callbacks[0].on_step_begin()
            callbacks[0].on_step_end()

    ours.step()
    turns = whole_steps.run_turns(SimpleNamespace(add_callback=callbacks.append, train=train), ours)
    assert turns == {"peer": [8.0, 4.0], "ours": [1.0, 4.0]}


def test_a_plot_leaves_out_what_is_not_finite(tmp_path):
    nan = float("nan")
    assert plot.finite_points([(1, 5), (2, nan), (float("inf"), 2)]) == [(1, 5)]
    plot.draw_loss(tmp_path / "empty.png", [(1, nan)])
    assert not (tmp_path / "empty.png").exists()


def test_the_knowledge_benchmark_does_without_torch():
    """A search is timed beside nothing that it does not need."""
    assert python("-c", "import sys, bench.knowledge; sys.exit('torch' in sys.modules)").returncode == 0


def test_a_part_that_runs_out_of_time_keeps_its_checks_and_profiles(monkeypatch, tmp_path):
    """In its last profile; all cases are measured before the first, because a profiler slows what follows."""
    file, order = tmp_path / "decode.jsonl", []

    def profile(run, device):
        order.append("profile")
        return [{"name": "gemm", "calls": 1, "share": 1.0}] if order.count("profile") < 2 else sys.exit(124)

    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setattr(timing, "profile", profile)
    monkeypatch.setattr(timing, "interleave", lambda *_: order.append("case") or {"ours": [1.0]})
    with pytest.raises(SystemExit):
        decode.main(["--smoke", "--profile", "--save"])
    assert order == ["case"] * 3 + ["profile"] * 2
    rows = read_lines(file)
    assert [len(row["cases"]) for row in rows] == [1, 1, 1, 0], "each as soon as it is there"
    assert list(rows[3]["profiles"]) == ["tiny, 5 rows, context 20, LoRA"]

    kept = record.Results("sums", SimpleNamespace(device="cpu", save=file))
    kept.check({"judged all": True})
    assert read_lines(file)[-1]["checks"] == {"judged all": True}, "before it is finished"


def test_the_log_of_experiments_is_short():
    """Four lines each: what, expected, found, decided."""
    lines = (ROOT / "bench" / "LOG.md").read_text(encoding="utf-8").splitlines()
    entry = r"## \d{4}-\d\d-\d\d .*\([0-9a-f]{8}\)\n- Expected.*\n- Found.*\n- Decided.*\n?"
    assert len(lines) <= 300 and re.fullmatch(f"({entry})+", "\n".join(lines[4:]))
