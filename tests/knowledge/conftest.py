"""Small knowledge bases of every kind that must be served: ours, KnowRL's and FActScore's."""

import sqlite3
from pathlib import Path

import pytest
from commands import run_command
from making import build_base

from knowledge.store.passages import SEPARATOR

DOCUMENTS = {
    "Alex": "Alex Weber was born in 1962 in Kassel. He studied law. In 1990 he founded a bakery in Hamburg.",
    "AleX": "AleX is a band from Oslo. Its first album sold 1,234 copies.",
    "Ż": "Ż is a letter of the Polish alphabet.",
    "Ź": "Ź is another letter of the Polish alphabet, and of Sorbian.",
    "Alex;Ż": "A document whose title holds a semicolon.",
    "Mahatma Gandhi": "Gandhi led the Salt March in 1930. He wrote about satyagraha.",
    "黑豹队": "黑豹队的防守只丢了308分，在联赛中排名第六。唐朝建立于618年。",
    "Empty words": "The who and the what of it are not to be.",
}


@pytest.fixture(scope="session")
def make_base(tmp_path_factory):
    """Builds a knowledge base of {title: text or list of texts} and returns its path."""

    return lambda documents, **options: build_base(tmp_path_factory.mktemp("base"), documents, **options)


@pytest.fixture(scope="session")
def documents() -> dict[str, str]:
    return DOCUMENTS


@pytest.fixture(scope="session")
def ours(make_base) -> Path:
    return make_base(DOCUMENTS)


def write_ready_made(path: Path, documents: dict[str, str]) -> Path:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE documents (title PRIMARY KEY, text)")
    connection.executemany("INSERT INTO documents VALUES (?, ?)", documents.items())
    connection.commit()
    connection.close()
    return path


@pytest.fixture(scope="session")
def ready_made():
    """A function: path, {title: text} -> the file with a table documents(title, text), and nothing else."""
    return write_ready_made


@pytest.fixture
def knowrl(tmp_path) -> Path:
    """KnowRL's layout: passages of whole sentences, joined by the separator, keyed by the joined titles."""
    return write_ready_made(
        tmp_path / "knowrl.db",
        {
            "Alex;AleX": f"Alex Weber was born in 1962 in Kassel.{SEPARATOR}AleX is a band from Oslo.",
            "Ż": "Ż is a letter of the Polish alphabet.",
            "Mahatma Gandhi": f"Gandhi led the Salt March in 1930.{SEPARATOR}He wrote about satyagraha.",
        },
    )


@pytest.fixture
def factscore(tmp_path) -> Path:
    """FActScore's layout: passages cut anywhere by a tokenizer whose markers are still there."""
    return write_ready_made(
        tmp_path / "factscore.db",
        {
            "Alex": f"<s>Alex Weber was born in 1962 in</s>{SEPARATOR}<s>Kassel. He studied "
            "law.</s><s>In 1990 he founded a bakery.</s>",
            "Mahatma Gandhi": "<s>Gandhi led the Salt March in 1930.</s>",
        },
    )


@pytest.fixture
def run():
    """Runs `python -m module arguments` in a fork."""
    return run_command
