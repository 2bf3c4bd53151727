"""Stage 1's records by hand: four layouts, each answer an example, what is cut and what is left out."""

import json
import re
from pathlib import Path

import pytest
from making import cases, make_tokenizer, refused

from grpo.data.conversations import make_examples, read_conversation
from grpo.data.count import RowCount
from grpo.data.prompts import ChatEncoder

SYSTEM = {"role": "system", "content": "s"}


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


@pytest.mark.parametrize("record, said", cases(__file__, "layouts"))
def test_four_layouts_mean_messages(record, said):
    given, trained = read_conversation(json.loads(record))
    assert ", ".join(f"{turn['role']} {turn['content']}" for turn in given + trained) == said
    assert trained[-1] == assistant("b")


@pytest.mark.parametrize("record, problem", cases(__file__, "wrong"))
def test_what_is_wrong_with_a_record_is_said(record, problem):
    with pytest.raises(ValueError, match=problem):
        read_conversation(json.loads(record, strict=False))


BAD = [None, 7, True, "", "\ud800", [], ["a"], [["a", None]], {}, [{}], {"a": 1}]


def spoiled(value):
    """Yield copies of a value, in each of which one part, however deep, is one of BAD."""
    yield from BAD
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for place, part in items:
        for bad in spoiled(part):
            copy = value.copy()
            copy[place] = bad
            yield copy


@pytest.mark.parametrize("record", [record for record, _ in cases(__file__, "layouts")])
def test_a_record_with_any_part_spoiled_is_read_or_refused_in_words(record):
    """What cannot be read is an error with a cause that speaks of the data."""
    record = json.loads(record)
    for row in [{**record, name: bad} for name in record for bad in spoiled(record[name])]:
        try:
            given, trained = read_conversation(row)
            assert all(isinstance(message["content"], str) for message in given + trained)
            assert any(message["role"] == "assistant" for message in trained)
        except ValueError as error:
            said = str(error).replace("an object with", "")
            assert not re.search("NoneType|object|subscript|attribute|iterable", said)


def test_a_content_in_parts_is_its_text_and_one_with_an_image_is_left_out(encoder):
    def parts(*texts, **more):
        return [{"type": "text", "text": text, **more} for text in texts]

    turns = [user(parts("a", "b", image=None)), assistant(parts("c"))]
    assert read_conversation({"messages": turns}) == ([user("ab")], [assistant("c")])
    image = user([*parts("a"), {"type": "image_url", "image_url": "x"}])
    examples, count = examples_of([{"messages": turns}, {"messages": [image, turns[1]]}], encoder)
    assert len(examples) == 1 and str(count).endswith("left out: 1 with images, videos or audio")
    for content in ([], parts("a", 7), ["a"], [{"type": "tool_use"}]):
        with pytest.raises(ValueError, match="a message of the user holds no text"):
            read_conversation({"messages": [user(content), turns[1]]})


def examples_of(records, encoder, max_length=1000, system_prompt=None, **options):
    """Return the examples, and the count of the rows."""
    count = RowCount("d.jsonl", **options)
    return make_examples(records, Path("d.jsonl"), encoder, system_prompt, max_length, count), count


def cut_and_left_out(count, max_length):
    """How many answers were cut, and how many were left out."""
    left_out = f"answers left out, with prompts of more than {max_length} tokens"
    return count.notes[f"answers cut at {max_length} tokens"], count.notes[left_out]


def test_every_answer_is_an_example_after_all_that_was_said_before(encoder):
    """The first message of a conversation is never an answer to anything."""
    turns = [assistant("x"), user("a"), assistant("b"), user("c"), assistant("d")]
    examples, _ = examples_of([{"messages": turns}], encoder)
    for example, end, answer in zip(examples, (2, 4), ("b", "d"), strict=True):
        (completion,) = example.completions
        text, ids = encoder.prompt(turns[:end])
        assert (example.prompt.text, list(example.prompt.ids), example.prompt.row) == (text, ids, 0)
        assert list(completion.ids) == encoder.answer(answer)
        assert completion.ids[-1] == encoder.tokenizer.eos_token_id
        assert len(completion.logps) == len(completion.cuts) == len(completion.ids)


def test_of_prompt_and_completion_only_the_completion_is_trained(encoder):
    """An answer in the prompt was said before; a system prompt in front changes nothing about that."""
    prompt = [user("a"), assistant("b"), user("c")]
    record = {"prompt": prompt, "completion": [assistant("d"), user("e"), assistant("f")]}
    for system_prompt in (None, "mine"):
        examples, _ = examples_of([record], encoder, system_prompt=system_prompt)
        assert [example.completions[0].text for example in examples] == ["d", "f"]


def test_answers_are_cut_at_the_length_and_prompts_never(encoder):
    """A prompt of n tokens and an answer of m: whole at n + m, cut below, left out where no token of it fits."""
    record = {"messages": [user("a"), assistant("b c d")]}
    prompt, answer = encoder.prompt([user("a")])[1], encoder.answer("b c d")
    n, m = len(prompt), len(answer)
    short = {"messages": [user(""), assistant("b")]}  # so that there is something left of the data
    for length in (n + m, n + m - 1, n + 1):
        (example,), count = examples_of([record], encoder, length)
        assert list(example.prompt.ids) == prompt
        assert list(example.completions[0].ids) == answer[: length - n]
        assert cut_and_left_out(count, length) == (length < n + m, 0)
    examples, count = examples_of([record, short, record], encoder, n)
    assert len(examples) == 1 and cut_and_left_out(count, n) == (1, 2)
    told = f"2 answers left out, with prompts of more than {n}"
    refused(lambda: examples_of([record, record], encoder, n), "no usable example", told)


def test_bad_records_are_counted_and_named_by_their_rows(encoder):
    good = {"messages": [user("a"), assistant("b")]}
    bad = [{}, {"messages": "text"}, {"messages": [3]}, {"instruction": "a", "history": [["b"]], "output": "c"}]
    for one in bad:
        refused(lambda one=one: examples_of([good, one], encoder), "row 2 is not a conversation")
    rows = 2 * [good, *bad]
    refused(lambda: examples_of(rows, encoder), "8 rows are bad", "skip_bad_rows")
    examples, count = examples_of(rows, encoder, skips_bad=True)
    assert [example.prompt.row for example in examples] == [0, 5]
    assert "2 of 10 rows are used" in str(count) and "row 2 is not a conversation" in str(count)


def test_rows_marked_as_bad_and_rows_with_images_are_left_out(encoder):
    """KTO's label: false says that an answer is bad."""
    good = {"messages": [user("a"), assistant("b")]}
    bad = [{**good, "label": False}, {**good, "label": "False"}, {**good, "images": ["a.png"]}]
    rows = [*bad, {**good, "label": True, "images": []}, {**good, "label": None}]
    examples, count = examples_of(rows, encoder)
    assert [example.prompt.row for example in examples] == [3, 4]
    assert count.left_out == {"marked as bad (label: false)": 2, "with images, videos or audio": 1}
    refused(lambda: examples_of(bad, encoder), "no usable example", "2 marked as bad", "use other data")


def test_texts_of_100_megabytes_are_cut_or_left_out_without_being_encoded(tmp_path, monkeypatch):
    """A conversation of a short question and a huge answer, and one of a huge question."""
    encoder = ChatEncoder(make_tokenizer(["a b c d"], tmp_path))
    longest, encode = encoder.max_chars(40), type(encoder.tokenizer).encode

    def bounded(self, text, **options):
        assert len(text) <= longest
        return encode(self, text, **options)

    monkeypatch.setattr(type(encoder.tokenizer), "encode", bounded)
    huge = "a " * 50_000_000
    records = [{"messages": [user("a"), assistant(huge)]}, {"messages": [user(huge), assistant("b")]}]
    (example,), count = examples_of(records, encoder, 40)
    assert cut_and_left_out(count, 40) == (1, 1)
    assert len(example.prompt.ids) + len(example.completions[0].ids) == 40
