"""Data sets in the forms that TRL's users and the hub have: messages, tables, Parquet, Arrow, gzip, parts, splits."""

import gzip
import json
import sys
from datetime import date, datetime
from decimal import Decimal

import pytest
from making import cases, refused, write_rows

from grpo.base.storage import write_json
from grpo.config.options import SftConfig
from grpo.data import hub
from grpo.data.count import RowCount
from grpo.data.files import files_of, read_records
from grpo.data.hub import fetch_data, fetch_model
from grpo.data.prompts import make_prompts
from grpo.data.registry import find_sources
from grpo.data.rows import read_rows

ROWS = [{"question": "1 + 1?", "answer": "2"}, {"question": "2, or 3?", "answer": "3"}]


@pytest.fixture
def arrow():
    return pytest.importorskip("pyarrow")


def write_parquet(arrow, path, rows=ROWS):
    from pyarrow import parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(arrow.Table.from_pylist(rows), path)


def write_arrow(arrow, path, table):
    with arrow.ipc.new_stream(path, table.schema) as stream:
        stream.write_table(table)


def save_to_disk(arrow, folder, rows=ROWS, num_parts=2):
    """As the datasets library does: a stream of Arrow batches per part, and a state that names the parts."""
    folder.mkdir(parents=True)
    names = [f"data-{number:05d}-of-{num_parts:05d}.arrow" for number in range(num_parts)]
    for number, name in enumerate(names):
        write_arrow(arrow, folder / name, arrow.Table.from_pylist(rows[number::num_parts]))
    write_json(folder / "state.json", {"_data_files": [{"filename": name} for name in names]})
    (folder / "dataset_info.json").write_text("{}")


# --- files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_header_tells_the_delimiter_of_a_table(tmp_path, delimiter):
    text = f'question{delimiter}answer\r\n1 + 1?{delimiter}2\r\n"2, or 3; 4\t|?"{delimiter}3\r\n'
    (tmp_path / "d.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    wanted = [ROWS[0], {"question": "2, or 3; 4\t|?", "answer": "3"}]
    assert read_records(tmp_path / "d.csv") == wanted
    (tmp_path / "one.txt").write_text("question\nwhat\n")
    assert read_records(tmp_path / "one.txt") == [{"question": "what"}]
    excel = f"sep={delimiter}\r\n" + text.replace("\r\n", delimiter * 2 + "\r\n")
    (tmp_path / "excel.csv").write_text(excel, newline="")
    assert read_records(tmp_path / "excel.csv") == wanted
    (tmp_path / "bad.csv").write_text(f"a{delimiter}b\n1{delimiter}2{delimiter}3\n")
    refused(lambda: read_records(tmp_path / "bad.csv"), "bad.csv:2", "3 fields, and the header 2", repr(delimiter))


def test_gzip_of_anything(tmp_path):
    path, content = tmp_path / "b.gz", gzip.compress(json.dumps(ROWS).encode())
    path.write_bytes(content)
    assert read_records(path) == ROWS
    for broken in (content[:-9], content[:20] + b"\0\0\0\0\0\0" + content[26:]):
        path.write_bytes(broken)
        refused(lambda: read_records(path), "cannot read", "b.gz")


def test_parquet_in_one_file_and_in_parts(arrow, tmp_path):
    write_parquet(arrow, tmp_path / "d.parquet")
    assert read_records(tmp_path / "d.parquet") == ROWS
    for number in range(2):
        write_parquet(arrow, tmp_path / f"train-{number:05d}-of-00002.parquet", ROWS[number : number + 1])
    assert read_records(tmp_path / "train-00000-of-00002.parquet") == ROWS
    assert read_records(tmp_path / "train-00001-of-00002.parquet") == ROWS[1:]
    (tmp_path / "train-00001-of-00002.parquet").unlink()
    refused(lambda: read_records(tmp_path / "train-00000-of-00002.parquet"), "00001-of-00002.parquet is missing")


VALUES = {"date": date, "datetime": datetime, "Decimal": Decimal}  # names in the cases


def test_parquet_values_are_what_json_would_hold(arrow, tmp_path):
    """A float32 is the shortest number that it can be, and dates, decimals and bytes are text."""
    from pyarrow import parquet

    columns, wanted = {}, {}
    for kind, values, read in cases(__file__, "Parquet"):
        columns[kind] = arrow.array(eval(values, VALUES), eval(kind, vars(arrow).copy()))
        wanted[kind] = json.loads(read)
    parquet.write_table(arrow.table(columns), tmp_path / "d.parquet")
    found = read_records(tmp_path / "d.parquet")
    assert found == [{kind: values[place] for kind, values in wanted.items()} for place in range(2)]
    parquet.write_table(arrow.table({"q": ["a"], "picture": [b"\xff\xd8"]}), tmp_path / "d.parquet")
    refused(lambda: read_records(tmp_path / "d.parquet"), "the column picture, of type binary", "remove the column")
    twice = arrow.Table.from_arrays([arrow.array(["a"]), arrow.array(["b"])], names=["q", "q"])
    write_arrow(arrow, tmp_path / "d.arrow", twice)
    refused(lambda: read_records(tmp_path / "d.arrow"), "two columns have the same name", "'q'")


def test_what_save_to_disk_wrote(arrow, tmp_path):
    save_to_disk(arrow, tmp_path / "one")
    assert fetch_data(f"{tmp_path}/one") == tmp_path / "one" and read_records(tmp_path / "one") == ROWS
    save_to_disk(arrow, tmp_path / "dict/train", ROWS[:1], 1)
    save_to_disk(arrow, tmp_path / "dict/test", ROWS[1:], 1)
    (tmp_path / "dict/dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    for split, rows in (("train", ROWS[:1]), ("test", ROWS[1:])):
        assert read_records(fetch_data(f"{tmp_path}/dict", split)) == rows
    (tmp_path / "one/data-00001-of-00002.arrow").write_bytes(b"no arrow")
    refused(lambda: read_records(tmp_path / "one"), "not valid Arrow")
    (tmp_path / "one/data-00001-of-00002.arrow").unlink()
    refused(lambda: read_records(tmp_path / "one"), "is missing")
    refused(lambda: read_records(tmp_path), "is not a data set", "save_to_disk")


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for name, content in (("d.parquet", b"PAR1"), ("d.arrow", b"x")):
        (tmp_path / name).write_bytes(content)
        refused(lambda name=name: read_records(tmp_path / name), "needs pyarrow", "pip install 'grpo[parquet]'")


# --- folders and hub data sets ------------------------------------------------------------------------------------


def test_a_configuration_of_a_hub_data_set_is_a_folder_or_begins_the_name(tmp_path, monkeypatch):
    """Here two in folders, each with two splits, and one whose file bears its name."""
    monkeypatch.setattr(hub, "_download", lambda name, *_: {"someone/sums": tmp_path}[name])
    parts = [(config, split) for config in ("main", "socratic") for split in ("train", "test")]
    for config, split in parts:
        (tmp_path / config).mkdir(exist_ok=True)
        write_rows(tmp_path / config / f"{split}-00000-of-00001.jsonl", [{"question": f"{config} {split}"}])
    for config, split in parts:
        assert read_records(fetch_data(f"someone/sums:{config}", split)) == [{"question": f"{config} {split}"}]
    write_rows(tmp_path / "hard_sums.jsonl", ROWS)
    assert read_records(fetch_data("someone/sums:hard")) == ROWS
    for name in ("someone/sums:other", "someone/sums"):
        refused(lambda name=name: fetch_data(name), "no single train file", "main/train", "owner/name:config")


def test_the_revision_of_a_model_is_the_one_that_is_asked_for(tmp_path, monkeypatch):
    """And of a data set, the newest."""
    write_rows(tmp_path / "train.jsonl", ROWS)
    asked = []

    def download(name, repo_type, revision, **keys):
        asked.append(f"{repo_type} {name} {revision}")
        return tmp_path

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert fetch_model("owner/model", "v2") == fetch_model("owner/model") == tmp_path
    fetch_data("owner/data")
    assert asked == ["model owner/model v2", "model owner/model main", "dataset owner/data main"]


def test_a_folder_of_files_is_chosen_from_by_split(tmp_path):
    folder = tmp_path / "train-and-test"  # which says nothing about the splits
    folder.mkdir()
    for split in ("train", "test"):
        write_rows(folder / f"{split}.jsonl", ROWS)
        assert fetch_data(str(folder), split) == folder / f"{split}.jsonl"
    assert files_of(folder / "test.jsonl") == [folder / "test.jsonl"]


@pytest.mark.parametrize("names, split, chosen", cases(__file__, "splits"))
def test_the_file_of_a_split_is_found_by_a_word_of_its_name_and_then_by_its_kind(tmp_path, names, split, chosen):
    """Whoever asks for the training questions never gets those of the test."""
    (tmp_path / "data").mkdir()
    for name in names.split():
        (tmp_path / name).write_text("")
    if chosen:
        assert fetch_data(str(tmp_path), split) == tmp_path / chosen
    else:
        said = f"data set {tmp_path} has no single {split} file"
        refused(lambda: fetch_data(str(tmp_path), split), said, *names.split())


# --- conversations ------------------------------------------------------------------------------------------------

SYSTEM, USER = {"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi."}
ANSWER = {"role": "assistant", "content": "Hello."}
TURNS = [[USER], [SYSTEM, USER], [SYSTEM, USER, ANSWER, USER]]


@pytest.mark.parametrize("turns", TURNS)
def test_a_prompt_may_be_a_list_of_messages(tmp_path, encoder, turns):
    """TRL's conversational format; the columns beside it, also a question, are for the rewards."""
    record = {"prompt": turns, "question": "not this", "ground_truth": "Hello."}
    rows = read_rows(write_rows(tmp_path / "d.jsonl", [record]))
    assert (rows[0].question, rows[0].columns["answer"]) == ("Hi.", "Hello.")
    (prompt,) = make_prompts(rows, encoder, "Be brief.", "Q: {question}", 500, RowCount("d"))
    system = [] if turns[0] == SYSTEM else [{"role": "system", "content": "Be brief."}]
    messages = [*system, *turns[:-1], {"role": "user", "content": "Q: Hi."}]
    assert list(prompt.messages) == messages and prompt.text == encoder.prompt(messages)[0]


@pytest.mark.parametrize("name", ["messages", "conversations"])
@pytest.mark.parametrize("turns", TURNS)
def test_the_messages_of_stage_1_are_questions_too(tmp_path, name, turns):
    """An answer at their end is the truth, unless a column holds that; Parquet fills the columns of other rows."""
    rows = [{name: turns}, {name: [*turns, ANSWER]}, {name: [*turns, ANSWER], "answer": "Hi!"}]
    for filled in ({}, {"question": None, "answer": None}):
        found = read_rows(write_rows(tmp_path / "d.jsonl", [filled | row for row in rows]))
        assert [row.columns.get("answer") for row in found] == [None, "Hello.", "Hi!"]
        assert all((row.question, row.before) == ("Hi.", tuple(turns[:-1])) for row in found)
    for wrong in ([ANSWER], [SYSTEM], [USER, SYSTEM]):
        path = write_rows(tmp_path / "d.jsonl", [{name: wrong}])
        refused(lambda path=path: read_rows(path), "row 1 holds no conversation that ends with")
    (row,) = read_rows(write_rows(tmp_path / "d.jsonl", [{name: [*turns, ANSWER], "question": "This?"}]))
    assert row.question == "This?"


@pytest.mark.parametrize("prompt, part", cases(__file__, "prompts"))
def test_conversations_that_cannot_be_answered_are_refused(tmp_path, prompt, part):
    (tmp_path / "d.json").write_text(f'[{{"prompt": "Hi."}}, {{"prompt": {prompt}}}]')
    refused(lambda: read_rows(tmp_path / "d.json"), "row 2", part)


@pytest.mark.parametrize("text", [text for (text,) in cases(__file__, "broken")])
def test_json_that_is_not_one_value_after_another_is_refused(tmp_path, text):
    (tmp_path / "rows.json").write_text(text)
    refused(lambda: read_records(tmp_path / "rows.json"), "rows.json")


def test_a_registered_data_set_with_keys_that_would_change_its_rows_is_refused(tmp_path):
    entry = {"file_name": "rows.json", "formatting": "sharegpt", "ranking": True}
    write_json(tmp_path / "dataset_info.json", {"pairs": entry})
    config = SftConfig(dataset_id_or_path="pairs", dataset_dir=str(tmp_path))
    refused(lambda: find_sources(config), "pairs has ranking")
