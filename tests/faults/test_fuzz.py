"""Hostile input, property-based: each reader either answers or refuses in three lines, whatever it is given.

`corpus/` keeps what once broke a reader or looks likely to. FUZZ_EXAMPLES=4000 tries more of each, with other seeds.
"""

import json

import pytest
from fuzzing import corpus, damaged, json_values, quick, refuses_or, texts, to_bytes
from hypothesis import example, given
from hypothesis import strategies as st
from making import build_base

from grpo.config.load import load_config
from grpo.config.options import TrainConfig
from grpo.data.rows import fingerprint, read_rows
from knowledge.source import Document, Skip, read_source
from knowledge.store.base import KnowledgeBase
from knowledge.store.tokens import tokens


def as_json(value):
    return to_bytes(json.dumps(value, ensure_ascii=False))


# --- the configuration ---------------------------------------------------------------------------------------------

CONFIG = (
    b"model_name_or_path: m\ndataset_id_or_path: d\n"
    b"output_dir: o\nreward_funcs: [exact]\nbeta: 0.1\nlora_target_modules: [q_proj, v_proj]\nrun_name: ${HOME}\n"
)
keys = st.one_of(st.sampled_from(sorted(TrainConfig.__dataclass_fields__)), texts)
configs = st.one_of(
    damaged(CONFIG),
    st.binary(max_size=200),
    texts.map(to_bytes),
    st.dictionaries(keys, json_values, max_size=6).map(as_json),
    st.lists(st.tuples(keys, texts), max_size=6).map(
        lambda pairs: CONFIG + to_bytes("".join(f"{k}: {v}\n" for k, v in pairs))
    ),
)


def read_config(tmp, data):
    (tmp / "c.yaml").write_bytes(data)
    refuses_or(lambda: load_config(tmp / "c.yaml"), {2})


@pytest.fixture(scope="module")
def tmp(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


@quick
@given(data=configs)
def test_configurations(tmp, data):
    read_config(tmp, data)


@quick
@given(overrides=st.lists(st.one_of(texts, st.builds("{}={}".format, keys, texts)), max_size=4))
@example(overrides=["max_steps=2024-13-45", "beta=1e999"])
def test_overrides(overrides):
    needed = ["model_name_or_path=m", "dataset_id_or_path=d", "output_dir=o", "reward_funcs=exact"]
    refuses_or(lambda: load_config(None, [*needed, *overrides]), {2})


# --- the knowledge base --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def base(tmp):
    documents = {t: f"{t} was born in 1962. AND OR NOT NEAR title." for t in ("Alex", "NEAR", "C++", "Ż")}
    with KnowledgeBase(build_base(tmp, documents)) as opened:
        yield opened


@quick
@given(query=texts, title=texts)
@example(query='title:x AND NEAR("a" b, 3) * ^ -- "', title="'; DROP TABLE documents; --")
@example(query="word " * 5000, title="a" * 100_000)
def test_knowledge_query_builder(base, query, title):
    """Never an error; never another meaning: what is found shares a token with the query, and the titles are the ones
    asked for."""
    found = base.search(query, k=3)
    assert all(set(tokens(query)) & set(tokens(f"{passage.title} {passage.text}")) for passage in found)
    assert base.lookup(title).how in ("exact", "parts", "search", "missing")
    assert all(passage.title == "Alex" for passage in base.search(query, k=3, titles=["Alex"]))
    assert base.lookup("Alex").how == "exact"  # nothing was dropped


def files(*good, rows):
    """Strategy: a good file that is damaged, any bytes, any text, or such rows as an array or as lines."""
    several = st.lists(rows, max_size=3)
    lines = several.map(lambda found: b"\n".join(map(as_json, found)))
    return st.one_of(*map(damaged, good), st.binary(max_size=100), texts.map(to_bytes), several.map(as_json), lines)


SOURCE = b'{"title": "Alex", "text": "Born in 1962."}\r\n{"title": "B", "text": ["a", "b"]}\n'
ARRAY = b'[{"title": "Alex", "text": "x"},\n {"title": "B", "text": "y"}]'


def fuzz_source(tmp, data):
    (tmp / "source").write_bytes(data)
    found = refuses_or(lambda: list(read_source(tmp / "source")), {3})
    for row in found or []:
        assert row.number >= 1
        if isinstance(row, Document):
            assert row.title.strip() and "\0" not in row.title + row.text
            (row.title + row.text).encode()
        else:
            assert isinstance(row, Skip) and row.reason


@quick
@given(data=files(SOURCE, ARRAY, rows=json_values))
def test_knowledge_source_reader(tmp, data):
    fuzz_source(tmp, data)


# --- data sets ----------------------------------------------------------------------------------------------------

DATA = b'{"question": "What is 1 + 1?", "answer": "2"}\n{"question": "And 2 + 2?", "answer": ["4", "four"]}\n'
TABLE = b'question,answer,title\nWhat?,2,"a ""b"", c"\nWho?,me,x\n'


def read_data(tmp, data):
    (tmp / "data").write_bytes(data)
    rows = refuses_or(lambda: read_rows(tmp / "data"), {3})
    for row in rows or []:
        assert row.question.strip()
        assert all(isinstance(name, str) for name in row.columns)
        row.question.encode()
    assert rows is None or len(fingerprint(rows)) == 64


records = st.dictionaries(st.one_of(st.sampled_from(["question", "answer", "title"]), texts), json_values, max_size=4)


@quick
@given(data=files(DATA, TABLE, b"[" + DATA.replace(b"\n", b",", 1) + b"]", rows=records))
def test_data_set_reader(tmp, data):
    read_data(tmp, data)


READERS = {"config": read_config, "source": fuzz_source, "data": read_data}
KEPT = [(name, data) for name in READERS for data in corpus(name)]


@pytest.mark.parametrize(("name", "data"), KEPT, ids=range(len(KEPT)))
def test_kept_inputs(tmp, name, data):
    READERS[name](tmp, data)
