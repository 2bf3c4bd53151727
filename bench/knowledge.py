"""python -m bench.knowledge [--megabytes 20] [--peer rank_bm25|none] [--peer-documents 7500 60000] [--xquad DIR]
[--folder DIR]

How good and how fast is the knowledge base?
  recall   how often the gold paragraph is among the first results for XQuAD's questions, English and Chinese in one
           file; left out if xquad.en.json and xquad.zh.json are not in the folder --xquad
  scale    a build of generated text in a process of its own (MB/s, peak memory, size), then the latency of searches;
           left out with --megabytes 0
  peer     rank_bm25 on the same passages and queries, by turns: with lower-case words, as KnowRL uses it, and with our
           tokens

Word frequencies of the generated text follow Zipf's law in two regimes (Ferrer i Cancho and Sole 2001): exponent 1 for
the 8,000 most frequent words, real stop words first, and 1.6 beyond. Queries are 12 successive words of a passage, so
the passage itself is the right answer. Generated files are in --folder while they are needed. The last line of stdout
is JSON.
"""

import json
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench import timing
from bench.record import ROOT, Record, parse
from knowledge.build import SkipLog, build
from knowledge.store import tokens
from knowledge.store.base import KnowledgeBase
from knowledge.store.passages import SEPARATOR
from knowledge.store.source import Source

NUM_WORDS = 300_000
FREQUENT_WORDS = 8000
QUERY_WORDS = 12
K = 5  # results of a search
LANGUAGES = ("en", "zh")
DRAWN_WORDS = 1 << 17  # at once
SIZES = {
    "cpu": {
        "megabytes": 20.0,
        "peer_documents": [7500],
        "xquad": ROOT.parent / "shared" / "data" / "xquad",
        "folder": Path(tempfile.gettempdir()),
    },
    "smoke": {"megabytes": 0.5, "peer_documents": [200]},
}
PEER_TARGETS = {7500: 8.0, 60000: 15.0}  # documents: times faster than the peer
Document = tuple[str, str]  # title, text
Search = Callable[[str], set[str]]  # for titles


class Query(NamedTuple):
    """Some words of a passage, the id of the passage, and the title of its document."""

    title: str
    passage: str
    words: str


# --- Generated text ------------------------------------------------------------------------------------------------


def vocabulary(rng: np.random.Generator) -> np.ndarray:
    """Return the stop words, then made-up words, short ones first."""
    onsets = [*"bcdfghjklmnprstvwz", "br", "ch", "cl", "dr", "gr", "pl", "sh", "st", "th", "tr"]
    vowels = ("a", "e", "i", "o", "u", "ai", "ea", "ou")
    syllables = ["".join(parts) for parts in product(onsets, vowels)]
    made = set()
    while len(made) < NUM_WORDS:
        num_parts = int(rng.integers(2, 5))
        parts = rng.integers(len(syllables), size=num_parts)
        ending = "nrsl "[int(rng.integers(5))].strip()
        made.add("".join(syllables[part] for part in parts) + ending)
    made_up = sorted(made - tokens.STOP_WORDS)
    made_up.sort(key=len)
    return np.array(sorted(tokens.STOP_WORDS) + made_up, dtype=object)


def documents(megabytes: float, sentences: int = 48) -> Iterator[Document]:
    """Make (title, text) of about `sentences` sentences of 8 to 25 words each, until there are so many MB."""
    rng = np.random.default_rng(0)
    words = vocabulary(rng)
    ranks = np.arange(len(words)) + 2.7
    rare = FREQUENT_WORDS**0.6 / ranks**1.6
    frequency = np.where(ranks < FREQUENT_WORDS, 1 / ranks, rare)
    cumulative = np.cumsum(frequency / frequency.sum())
    num_bytes = number = 0
    while num_bytes < megabytes * 1e6:
        drawn = words[np.searchsorted(cumulative, rng.random(DRAWN_WORDS))]
        position = 0
        while position < len(drawn) - 2 * sentences * 25 and num_bytes < megabytes * 1e6:
            num_sentences = rng.integers(sentences // 2, sentences * 3 // 2 + 1)
            text = []
            for length in rng.integers(8, 26, size=int(num_sentences)):
                sentence = " ".join(drawn[position : position + length])
                text.append(sentence.capitalize() + ".")
                position += length
            names = words[rng.integers(1000, len(words), 2)]
            title = f"{' '.join(names).title()} {number}"
            number += 1
            num_bytes += sum(map(len, text)) + len(text)
            yield title, " ".join(text)


def write_source(path: Path, rows: Iterable[Document]) -> None:
    """Write documents as JSON lines."""
    with open(path, "w", encoding="utf-8") as file:
        for title, text in rows:
            row = {"title": title, "text": text}
            print(json.dumps(row, ensure_ascii=False), file=file)


def build_here(rows: list[Document], folder: Path, **options) -> Path:
    """Build a knowledge base of these documents in this process."""
    source, out = folder / "rows.jsonl", folder / "rows.db"
    write_source(source, rows)
    build(Source(source), out, SkipLog(source, strict=True), **options)
    return out


# --- Recall --------------------------------------------------------------------------------------------------------


def recall(xquad: Path, folder: Path) -> dict[str, float]:
    """Return, per language, the share of questions whose paragraph is the first result, and among the first 5."""
    paragraphs, questions = read_xquad(xquad)
    hits: dict[str, list[bool]] = defaultdict(list)
    with KnowledgeBase.open(build_here(paragraphs, folder, max_tokens=1024)) as base:
        for language, question, gold in questions:
            found = [passage.title for passage in base.search(question, K)]
            for depth in (1, K):
                hits[f"{language}@{depth}"].append(gold in found[:depth])
    shares = {}
    for name, values in hits.items():
        shares[name] = round(statistics.mean(values), 4)
        print(f"{name} {shares[name]:.4f}")
    return shares


def read_xquad(folder: Path) -> tuple[list[Document], list[tuple[str, str, str]]]:
    """Return the paragraphs as (name, text), and the questions as (language, question, name of the paragraph)."""
    paragraphs, questions = [], []
    for language in LANGUAGES:
        articles = json.loads((folder / f"xquad.{language}.json").read_text(encoding="utf-8"))["data"]
        for article in articles:
            for paragraph in article["paragraphs"]:
                name = f"p{len(paragraphs)}"
                paragraphs.append((name, paragraph["context"]))
                questions += [(language, question["question"], name) for question in paragraph["qas"]]
    return paragraphs, questions


# --- Scale ---------------------------------------------------------------------------------------------------------


def scale(megabytes: float, folder: Path) -> dict:
    """Build from a file in a fresh process, then search."""
    source, out = folder / "generated.jsonl", folder / "generated.db"
    write_source(source, documents(megabytes))
    result = {"megabytes": megabytes, **time_build(source, out)}
    result["build_mb_per_s"] = megabytes / result["build_s"]
    with KnowledgeBase.open(out) as base:
        queries = sample_queries(out, 300)
        result["passages"] = base.kind.meta["passages"]
        for name in ("within_cold", "within_warm", "everything"):
            result[name] = time_searches(base, queries, inside_title=name != "everything")
    print(json.dumps(result, indent=1))
    return result


def time_build(source: Path, out: Path) -> dict[str, float]:
    """Run the build command in a process of its own, and return its time, peak memory and size (Unix only)."""
    import resource

    start = time.perf_counter()
    command = [sys.executable, "-m", "knowledge.build", source, out]
    subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=True)
    return {
        "build_s": time.perf_counter() - start,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024,
        "file_mb": out.stat().st_size / 1e6,
    }


def time_searches(base: KnowledgeBase, queries: list[Query], inside_title: bool) -> dict[str, float]:
    """Return latencies and recall of some queries, inside the passage's document or in all documents."""
    times_ms, hits = [], 0
    for query in queries:
        titles = [query.title] if inside_title else None
        start = time.perf_counter()
        found = base.search(query.words, K, titles)
        times_ms.append(1e3 * (time.perf_counter() - start))
        hits += query.passage in [passage.id for passage in found]
    return {
        "p50_ms": statistics.median(times_ms),
        "p99_ms": statistics.quantiles(times_ms, n=100)[98],
        "max_ms": max(times_ms),
        "recall@5": hits / len(queries),
    }


def sample_queries(path: Path, number: int) -> list[Query]:
    """Take queries from documents all over a knowledge base's file."""
    rng = random.Random(0)
    queries = []
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        ((last,),) = connection.execute("SELECT max(rowid) FROM documents")
        while len(queries) < number:
            sql = "SELECT title, text FROM documents WHERE rowid >= ? LIMIT 1"
            row = rng.randint(1, last)
            ((title, text),) = connection.execute(sql, [row])
            passages = text.split(SEPARATOR)
            place = rng.randrange(len(passages))
            words = passages[place].split()
            if len(words) > 2 * QUERY_WORDS:
                begin = rng.randrange(len(words) - QUERY_WORDS)
                chosen = words[begin : begin + QUERY_WORDS]
                queries.append(Query(title, f"{title}#{place}", " ".join(chosen)))
    return queries


# --- Peer ----------------------------------------------------------------------------------------------------------


def peer(num_documents: int, folder: Path, record: Record) -> None:
    """Compare with rank_bm25 on the same passages: the time of a search, and how often each finds the right one."""
    many = documents(num_documents * 1.2e-3, sentences=10)
    rows = list(islice(many, num_documents))
    path = build_here(rows, folder, max_tokens=4096)
    queries = sample_queries(path, 40)
    splits = {
        "lower-case words, as KnowRL": lambda text: text.lower().split(),
        "our tokens": tokens.tokens,
    }
    with KnowledgeBase.open(path) as base:
        for name, split in splits.items():
            searches = {"ours": partial(search_ours, base), "rank_bm25": make_peer_search(rows, split)}
            case = compare(f"search, {len(rows)} documents, {name}", searches, queries, record.options)
            if num_documents in PEER_TARGETS:
                case["target"] = PEER_TARGETS[num_documents]
            record.add(case)


def search_ours(base: KnowledgeBase, words: str) -> set[str]:
    """Return the titles of the results."""
    return {passage.title for passage in base.search(words, K)}


def make_peer_search(rows: list[Document], split: Callable[[str], list[str]]) -> Search:
    """Return the peer's search for titles. split: makes words of a text."""
    from rank_bm25 import BM25Okapi

    index = BM25Okapi([split(f"{title} {text}") for title, text in rows])

    def search(words: str) -> set[str]:
        scores = index.get_scores(split(words))
        best = np.argpartition(scores, -K)[-K:]
        return {rows[place][0] for place in best}

    return search


def compare(
    name: str,
    searches: dict[str, Search],
    queries: list[Query],
    options: Namespace,
) -> dict:
    """Time all queries of each side, by turns; the times of the case are those of one search."""
    texts = [query.words for query in queries]
    sides = {}
    for side, search in searches.items():
        sides[side] = lambda search=search: list(map(search, texts))
    case = timing.compare(name, sides, options, calls=len(queries))
    for side, search in searches.items():
        hits = [query.title in search(query.words) for query in queries]
        case[f"{side}_recall@5"] = statistics.mean(hits)
    return case


def main(argv: list[str] | None = None) -> dict:
    peers = {"none": (), "rank_bm25": ("rank_bm25",)}
    options = parse("bench.knowledge", __doc__, argv, SIZES, peers, dtypes=())
    record = Record("knowledge", options)
    report = {"recall": None, "scale": None}
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        folder = Path(temporary)
        if (options.xquad / "xquad.en.json").exists() and not options.smoke:
            report["recall"] = recall(options.xquad, folder)
        if options.megabytes:
            report["scale"] = scale(options.megabytes, folder)
        if options.peer == "rank_bm25":
            for num_documents in options.peer_documents:
                peer(num_documents, folder, record)
    return record.finish(**report, sqlite=sqlite3.sqlite_version)


if __name__ == "__main__":
    main()
