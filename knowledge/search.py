"""python -m knowledge.search DB QUERY [--title T] [-k 5] [--json]

Searches a knowledge base: over everything, or in the documents of a title (several are joined by semicolons, as in the
data sets).
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from grpo.errors import run_main
from knowledge.store.base import KnowledgeBase


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m knowledge.search", description=__doc__.split("\n\n", 1)[1])
    parser.add_argument("db", type=Path, metavar="DB")
    parser.add_argument("query", metavar="QUERY")
    parser.add_argument("--title", metavar="T", help="search in the documents of this title only")
    parser.add_argument("-k", type=_positive, default=5, help="number of passages (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    options = parser.parse_args(argv)
    with KnowledgeBase.open(options.db) as base:
        found = base.lookup(options.title) if options.title is not None else None
        passages = base.search(options.query, options.k, found.titles if found else None)
    if options.json:
        print(
            json.dumps(
                {
                    "query": options.query,
                    "lookup": asdict(found) if found else None,
                    "passages": [asdict(passage) for passage in passages],
                }
            )
        )
        return
    if found:
        print(f"title: {found.how}: {printable('; '.join(found.titles)) or 'no document'}")
    for rank, passage in enumerate(passages, 1):
        print(f"{rank}. {passage.score:6.2f}  {printable(passage.id)}\n   {printable(passage.text)}")
    if not passages:
        print("no passage found")


def printable(text: str) -> str:
    """Text from the base without terminal control characters, on one line."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _positive(value: str) -> int:
    if int(value) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return int(value)


if __name__ == "__main__":
    run_main(main)
