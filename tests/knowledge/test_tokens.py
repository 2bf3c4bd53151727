"""Tokens: what a query and a passage have in common, held against FTS5."""

import sqlite3

import pytest
from cells import cells
from hypothesis import given
from hypothesis import strategies as st

from knowledge.store.tokens import tokens
from knowledge.text import fold
from knowledge.words import STOP_WORDS


def fts5_terms(tokenizer, texts):
    """The terms that FTS5 makes of each text, by an index of them."""
    connection = sqlite3.connect(":memory:")
    connection.execute(f"CREATE VIRTUAL TABLE indexed USING fts5(text, tokenize='{tokenizer}')")
    connection.execute("CREATE VIRTUAL TABLE vocabulary USING fts5vocab(indexed, 'instance')")
    connection.executemany("INSERT INTO indexed(rowid, text) VALUES (?, ?)", enumerate(texts))
    terms: dict[int, list[str]] = {}
    for term, row in connection.execute("SELECT term, doc FROM vocabulary ORDER BY doc, offset"):
        terms.setdefault(row, []).append(term)
    return terms


@pytest.mark.parametrize(
    "words",
    cells("""
    bakery bakeries ¦ march marches marched marching ¦ live lives lived living ¦ study studies studied
    publish publishes published publishing ¦ album albums ¦ play plays played playing
    """),
)
def test_the_forms_of_a_word_are_one_token(words):
    assert len(set(tokens(words))) == 1


TOKENS = cells(  # short words keep their endings
    """
    The Normans' cafés, 1,234 of them | norman caf 1234 ¦ gas king red 1990s the bee | gas king red 1990s bee
    黑豹队 NFL | 黑豹 豹队 nfl ¦ 唐 | 唐 ¦ 第3章abc | 第 3 章 abc ¦ ＮＦＬ　ｶﾌｪ | nfl カフ フェ ¦ The Who | the who
    Straße İstanbul | strass istanbul ¦ C++, title:x (NEAR) | c titl x near ¦ snake_case | snak cas ¦ AT&T | at t
    भारत की | भारत की ¦ 12,34 and 1,234,567.5 | 12 34 1234567 5 ¦ …!? \0 \ud800 😀 |
    Łódź RÉSUMÉ Łódz resume Ærø | lodz resum lodz resum aero
    """,
    f"The Who and what it is, don't we bee {' '.join(STOP_WORDS - {'a'})} | bee",
)


@pytest.mark.parametrize("case", TOKENS, ids=range(len(TOKENS)))
def test_tokens(case):
    text, expected = case.split(" |")
    assert tokens(text) == expected.split()


@given(st.text())
def test_any_text_has_tokens_that_fts5_returns_unchanged(text):
    found = tokens(text)
    assert fts5_terms("ascii", [" ".join(found)]).get(0, []) == found


@given(st.text())
def test_folding_twice_changes_nothing_more(text):
    assert tokens(fold(text)) == tokens(text)
