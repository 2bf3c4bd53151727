"""Passages: whole sentences, never longer than asked, nothing lost."""

import pytest
from cells import cells
from hypothesis import given
from hypothesis import strategies as st

from knowledge.store.passages import BYTES_PER_TOKEN, SEPARATOR, pack, sentences, split_stored
from knowledge.words import ABBREVIATIONS

SENTENCES = cells(  # with | between two sentences
    r"""
    He came. |She went. ¦ He said "No." |Then he left! |Why? ¦ Dr. J. R. Smith, b. 1962 in the U.S. Capitol, left.
    It has 3.5 m, e.g. this one. |12 more. ¦ 第一句。|第二句！|“好吗？”|他说。 ¦ A title\n|Then text ¦ no end
    He came. she went. ¦ Wait! what now? |Then. ¦ It is Yahoo! and more. |Then ¦ Is it No. |5? |So. ¦ It ends.Next
    Dr! |No. ¦ MegaCorp. |Then ¦ It is Washington, D.C. |The dollar is used. ¦ It is Washington, D.C.. |Lima is not.
    It is Sana'a. |Lima is not. ¦ At 5 p.m. |He left the U.S. |A day later. ¦ On Main St. |It is big. ¦ Wait... |Then
    J. A. Smith and J.R. A. Orn ¦ Dr. He, Vol. A, e.g. The Hague, vs. The Beatles ¦ U.S. Theory ¦ It ends, etc. |But
    """
)


@pytest.mark.parametrize("marked", SENTENCES)
def test_sentences(marked):
    assert list(sentences(marked.replace("|", ""))) == marked.split("|")


@pytest.mark.parametrize("word", ["J", "Prof", "U.S", "e.g", *ABBREVIATIONS])
def test_an_abbreviation_ends_no_sentence(word):
    assert list(sentences(f"It was {word}. Three of them. Then")) == [f"It was {word}. Three of them. ", "Then"]


def test_a_long_sentence_is_cut_at_its_last_space_unless_that_is_early():
    assert pack("a b" + "c" * 30, 4) == ["a b" + "c" * 13, "c" * 16, "c"]  # 16 bytes each: the space is too early
    assert pack("a" * 9 + " " + "b" * 20, 4) == ["a" * 9, "b" * 16, "b" * 4]
    assert pack("a" * 7 + " " + "b" * 20, 4)[0] == "a" * 7 + " " + "b" * 8  # the space ends before the middle
    assert pack("aaa " * 8, 4) == ["aaa aaa aaa aaa"] * 2
    assert pack("é" * 20, 4) == ["é" * 8, "é" * 8, "é" * 4] and pack("x" + "é" * 10, 4) == ["x" + "é" * 7, "é" * 3]


def test_a_passage_is_filled_to_its_very_limit():
    assert pack("Aaaa 123. Bb 5. Now", 4) == ["Aaaa 123. Bb 5.", "Now"]  # 10 + 6 bytes, of 16
    assert pack("Aaaa 123. Bb 55. Now", 4) == ["Aaaa 123.", "Bb 55. Now"]


@given(st.text())
def test_sentences_joined_are_the_text(text):
    assert "".join(sentences(text)) == text


@given(
    st.lists(st.sampled_from(["A short one. ", "这是一句话。", "word " * 30 + ". ", "x" * 90, "è" * 50 + "! "])),
    st.integers(5, 60),
)
def test_passages_are_short_enough_and_hold_everything(pieces, max_tokens):
    text = "".join(pieces)
    packed = pack(text, max_tokens)
    assert all(0 < len(passage.encode()) <= max_tokens * BYTES_PER_TOKEN for passage in packed)
    assert "".join("".join(packed).split()) == "".join(text.split())


def test_stored_layouts():
    assert split_stored(f"One.{SEPARATOR} {SEPARATOR}Two.") == ["One.", "Two."]
    assert split_stored(f"<s>One</s>{SEPARATOR}<s>two.</s><s>Three.</s>") == ["One", "two.  Three."]
