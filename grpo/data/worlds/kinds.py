"""What every toy world is made of, and the words of its answers that others read as well."""

from dataclasses import dataclass

NOTHING_FOUND = "nothing found"  # by a search
DECLINED = "I don't know"
SHARE_DECLINED = 0.4  # of the answers of a cold start, drawn at random


@dataclass
class World:
    """Rows for every file of a toy world."""

    articles: list[dict[str, str]]  # of its knowledge base, {title, text}; none if the world has no such base
    conversations: list  # stage 1: (question, answer), or messages
    questions: list[dict]  # stage 2: {question, answer}, and here {title, familiarity}
    held_out: list[dict]  # the same, about people or sums that are not in `questions`
