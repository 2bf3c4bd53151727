"""Make untrusted text safe to store and to show: the models' replies, the rows of a data file."""


def encodable(text: str) -> str:
    """Replace lone surrogates, which JSON can write and UTF-8 cannot, by question marks."""
    return text.encode("utf-8", "replace").decode()


def printable(text: str, keep: str = "") -> str:
    """Replace each control character by a space, except those in `keep`: no terminal or chat template acts on it."""
    return "".join(char if char.isprintable() or char in keep else " " for char in text)


def shortened(text: str, max_chars: int) -> str:
    """Return the text, or its first `max_chars` characters and an ellipsis."""
    return text if len(text) <= max_chars else text[:max_chars] + "…"
