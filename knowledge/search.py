"""python -m knowledge.search DB QUERY [--title T] [-k 5] [--json]

Search a knowledge base: over everything, or in the documents of a title. A title may join several by semicolons, as in
the data sets.
"""

import json
from dataclasses import asdict
from pathlib import Path

from grpo.base.errors import escape, run_main
from grpo.base.progress import command_parser, say_next
from knowledge.store.base import KnowledgeBase


def main(argv: list[str]) -> None:
    parser = command_parser("knowledge.search", __doc__.split("\n\n", 1)[1])
    parser.add_argument("db", type=Path, metavar="DB", help="the knowledge base")
    parser.add_argument("query", metavar="QUERY", help="the text to search for; no character has a special meaning")
    parser.add_argument("--title", metavar="T", help="search only in the documents of this title")
    parser.add_argument("-k", type=int, default=5, help="return this many passages (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    options = parser.parse_args(argv)
    if options.k < 1:
        parser.error("-k must be at least 1")
    with KnowledgeBase(options.db) as base:
        found = None if options.title is None else base.lookup(options.title)
        passages = base.search(options.query, options.k, found and found.titles)
    if options.json:
        told = {
            "query": options.query,
            "lookup": found and asdict(found),
            "passages": list(map(asdict, passages)),
        }
        print(json.dumps(told))
        return
    if found:
        print(f"title: {found.how}: {on_one_line('; '.join(found.titles)) or 'no document'}")
    for rank, passage in enumerate(passages, 1):
        print(f"{rank}. {passage.score:6.2f}  {on_one_line(passage.id)}\n   {on_one_line(passage.text)}")
    title = passages[0].title if passages else "TITLE"
    say_next(
        "the passages above; --json prints them as JSON" if passages else "no passage found",
        ["knowledge.search", options.db, options.query, "--title", title],
        ["knowledge.verify", options.db],
    )


def on_one_line(text: str) -> str:
    """Return a text of the base on one line, with its control characters made visible."""
    return escape(" ".join(text.split()))


if __name__ == "__main__":
    run_main(main)
