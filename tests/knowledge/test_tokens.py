"""Tokens: what a query and a passage have in common. The stemmer is held against SQLite's own, the tokens against
FTS5."""

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knowledge.store.stem import STEP_2, STEP_3, STEP_4, stem
from knowledge.store.tokens import tokens
from knowledge.text import fold
from knowledge.words import STOP_WORDS

ROOTS = (
    "abil act adjust agre allow ambigu bak bibl bowdl chang cl condition conflat connect cr decis "
    "defend dep depend digit doubt "
    "effect enc feudal fil fix form formal gener glad grav happ hop hopp hous hyp inflat lik log mat "
    "mend motor nation operat "
    "optim oscillat plast predicat prob radic rat reduc relat reviv roll run say sens sk sky spr "
    "tann triplic try vali vile "
    "see who woo wor yield zo"
)
ENDINGS = ["", "s", "es", "ies", "sses", "ed", "eed", "ing", "y", "ying", "e", "ee", "ll", "lls", "ly", "'s"]


def fts5_terms(tokenizer: str, texts: list[str]) -> dict[int, list[str]]:
    """The terms that FTS5 makes of each text, by an index of them."""
    connection = sqlite3.connect(":memory:")
    connection.execute(f"CREATE VIRTUAL TABLE indexed USING fts5(text, tokenize='{tokenizer}')")
    connection.execute("CREATE VIRTUAL TABLE vocabulary USING fts5vocab(indexed, 'instance')")
    connection.executemany("INSERT INTO indexed(rowid, text) VALUES (?, ?)", enumerate(texts))
    terms: dict[int, list[str]] = {}
    for term, row in connection.execute("SELECT term, doc FROM vocabulary ORDER BY doc, offset"):
        terms.setdefault(row, []).append(term)
    return terms


def test_stems_are_sqlites():
    suffixes = [*ENDINGS, *(suffix for suffix, _ in STEP_2 + STEP_3 + STEP_4)]
    words = sorted(
        {
            (root + suffix + last).replace("'", "")
            for root in ROOTS.split()
            for suffix in suffixes
            for last in ("", "s", "ed")
        }
    )
    words = [
        word for word in words if "yy" not in word
    ]  # no English word; there SQLite takes the second y for a consonant
    theirs = fts5_terms("porter ascii", words)
    assert len(words) > 8000
    assert {word: stem(word) for word in words} == {word: theirs[row][0] for row, word in enumerate(words)}


@pytest.mark.parametrize(
    "text, expected",
    [
        ("The Normans' cafés, 1,234 of them", ["norman", "cafe", "1234"]),
        ("黑豹队 NFL", ["黑豹", "豹队", "nfl"]),
        ("唐", ["唐"]),
        ("第3章abc", ["第", "3", "章", "abc"]),
        ("ＮＦＬ　ｶﾌｪ", ["nfl", "カフ", "フェ"]),
        ("Straße İstanbul", ["strass", "istanbul"]),
        ("C++, title:x (NEAR)", ["c", "titl", "x", "near"]),
        ("snake_case", ["snake", "case"]),
        ("भारत की", ["भारत", "की"]),
        ("12,34 and 1,234,567.5", ["12", "34", "1234567", "5"]),
        ("…!? \0 \ud800 😀", []),
    ],
)
def test_tokens(text, expected):
    assert tokens(text) == expected


@given(st.text())
def test_any_text_has_tokens_that_fts5_returns_unchanged(text):
    found = tokens(text)
    assert fts5_terms("ascii", [" ".join(found)]).get(0, []) == found


@pytest.mark.parametrize("text", ["The Who and what it is", "don't we", " ".join(STOP_WORDS)])
def test_stop_words_are_no_tokens(text):
    assert tokens(text) == []


@given(st.text())
def test_folding_twice_changes_nothing_more(text):
    assert tokens(fold(text)) == tokens(text)


def test_an_accent_or_a_capital_makes_no_difference_to_a_token():
    assert tokens("Łódź RÉSUMÉ") == tokens("Łódz resume")
