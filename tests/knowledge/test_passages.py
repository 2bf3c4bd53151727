"""Passages: whole sentences, never longer than asked, nothing lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knowledge.store.passages import SEPARATOR, num_tokens, pack, passages_of, sentences, split_stored


@pytest.mark.parametrize(
    "text, expected",
    [
        ("He came. She went.", ["He came. ", "She went."]),
        ('He said "No." Then he left! Why?', ['He said "No." ', "Then he left! ", "Why?"]),
        (
            "Dr. J. R. Smith, b. 1962 in the U.S. Capitol, left.",
            ["Dr. J. R. Smith, b. 1962 in the U.S. Capitol, left."],
        ),
        ("It has 3.5 m, e.g. this one. 12 more.", ["It has 3.5 m, e.g. this one. ", "12 more."]),
        ("第一句。第二句！“好吗？”他说。", ["第一句。", "第二句！", "“好吗？”", "他说。"]),
        ("A title\nThen text", ["A title\n", "Then text"]),
        ("no end", ["no end"]),
        ("", []),
    ],
)
def test_sentences(text, expected):
    assert list(sentences(text)) == expected


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
    assert all(0 < num_tokens(passage) <= max_tokens for passage in packed)
    assert "".join("".join(packed).split()) == "".join(text.split())


def test_sentences_stay_whole_and_fill_the_passage():
    text = " ".join(f"Sentence number {number} is here." for number in range(100))
    packed = pack(text, 64)
    assert all(passage.endswith("here.") and passage.startswith("Sentence") for passage in packed)
    assert all(num_tokens(passage) > 50 for passage in packed[:-1])


def test_a_row_is_one_text_and_never_holds_the_separator():
    assert passages_of(["One.", "Two."]) == ["One.\nTwo."]
    assert SEPARATOR not in "".join(passages_of([f"One.{SEPARATOR}Two."]))


def test_stored_layouts():
    assert split_stored(f"One.{SEPARATOR} {SEPARATOR}Two.") == ["One.", "Two."]
    assert split_stored(f"<s>One</s>{SEPARATOR}<s>two.</s><s>Three.</s>", markers=True) == ["One", "two.  Three."]
    assert split_stored("<s>kept</s>") == ["<s>kept</s>"]
