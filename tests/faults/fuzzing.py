"""What the fuzzing tests try: strategies for hostile text, values and damage, the kept inputs, and how a reader may
refuse."""

import os
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st

from grpo.base.errors import UserError

CORPUS = Path(__file__).parent / "corpus"
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", 250))
quick = settings(max_examples=EXAMPLES, derandomize="FUZZ_EXAMPLES" not in os.environ, deadline=None)

WORDS = (
    r"""<think> </think> <answer> </answer> \boxed{ } { [ ] " ' \ AND NEAR( title: * ^ -- 1e999 nan null true &a *a """
    r"""!!python/object/apply:os.system ${HOME} ${ 2024-13-45 0x 1_000 ~ | > % @ `"""
)
CHARACTERS = ["\0", "\ud800", "\u2028", "\x85", "\ufeff", "\u202e", "\x1b[2J", "\n", "\r\n"]
nasty = st.sampled_from([*CHARACTERS, *WORDS.split(), "9" * 5000])
texts = st.lists(st.one_of(st.text(st.characters(exclude_categories=()), max_size=8), nasty), max_size=12).map("".join)
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=8,
)


def corpus(name: str) -> list[bytes]:
    """The kept inputs for a reader."""
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


def to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def damaged(data: bytes):
    """Strategy: the bytes with pieces cut out, flipped or put in."""
    edits = st.lists(
        st.tuples(st.integers(0, len(data)), st.integers(0, 20), st.binary(max_size=6)), min_size=1, max_size=4
    )

    def apply(changes):
        out = data
        for place, length, piece in changes:
            out = out[:place] + piece + out[place + length :]
        return out

    return edits.map(apply)


def refuses_or(read, codes):
    """The value, or None where it refuses as it should: three lines and one of these exit codes."""
    try:
        return read()
    except UserError as error:
        assert error.exit_code in codes
        assert error.what
        assert len(str(error)) < 100_000
        str(error).encode("utf-8", "backslashreplace")
        return None
