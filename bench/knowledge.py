"""python -m bench.knowledge [--megabytes 20] [--peer rank_bm25|none] [--peer-documents 7500 60000] [--xquad DIR]
[--folder DIR]

How good and how fast is the knowledge base?
  recall   how often the gold paragraph is among the first results for XQuAD's questions, English and Chinese in one
           file; left out if XQuAD's files are missing
  scale    a build of generated text in a process of its own (MB/s, peak memory, size), then the latency of searches
  peer     rank_bm25 on the same passages and queries, by turns: with lower-case words, as KnowRL uses it, and with our
           tokens

Word frequencies of the generated text follow Zipf's law in two regimes (Ferrer i Cancho and Sole 2001): exponent 1 for
the 8,000 most frequent words, real stop words first, and 1.6 beyond. Queries are 12 successive words of a passage, so
the passage itself is the right answer. The last line of stdout is JSON.
"""

import json
import os
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import numpy as np

from bench import timing
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
PEER_TARGETS = {7500: 8.0, 60000: 15.0}  # documents: times faster than the peer


# --- Generated text ------------------------------------------------------------------------------------------------


def vocabulary(rng: np.random.Generator) -> np.ndarray:
    """Return the stop words, then made-up words, short ones first."""
    onsets = [*"bcdfghjklmnprstvwz", "br", "ch", "cl", "dr", "gr", "pl", "sh", "st", "th", "tr"]
    syllables = [onset + vowel for onset in onsets for vowel in ("a", "e", "i", "o", "u", "ai", "ea", "ou")]
    made = set()
    while len(made) < NUM_WORDS:
        parts = rng.integers(len(syllables), size=int(rng.integers(2, 5)))
        ending = "nrsl "[int(rng.integers(5))].strip()
        made.add("".join(syllables[part] for part in parts) + ending)
    made_up = sorted(made - tokens.STOP_WORDS, key=lambda word: (len(word), word))
    return np.array([*sorted(tokens.STOP_WORDS), *made_up], dtype=object)


def documents(megabytes: float, sentences: int = 48) -> Iterator[tuple[str, str]]:
    """Make (title, text) of about `sentences` sentences of 8 to 25 words each, until there are so many MB."""
    rng = np.random.default_rng(0)
    words = vocabulary(rng)
    ranks = np.arange(len(words)) + 2.7
    frequency = np.where(ranks < FREQUENT_WORDS, 1 / ranks, FREQUENT_WORDS**0.6 / ranks**1.6)
    cumulative = np.cumsum(frequency / frequency.sum())
    num_bytes = number = 0
    while num_bytes < megabytes * 1e6:
        drawn = words[np.searchsorted(cumulative, rng.random(DRAWN_WORDS))]
        position = 0
        while position < len(drawn) - 2 * sentences * 25 and num_bytes < megabytes * 1e6:
            num_sentences = int(rng.integers(sentences // 2, sentences * 3 // 2 + 1))
            text = []
            for length in rng.integers(8, 26, size=num_sentences):
                text.append(" ".join(drawn[position : position + length]).capitalize() + ".")
                position += length
            title = " ".join(words[rng.integers(1000, len(words), 2)]).title() + f" {number}"
            number += 1
            num_bytes += sum(map(len, text)) + len(text)
            yield title, " ".join(text)


def write_source(path: Path, rows: Iterable[tuple[str, str]]) -> None:
    """Write documents as JSON lines."""
    with open(path, "w", encoding="utf-8") as file:
        for title, text in rows:
            print(json.dumps({"title": title, "text": text}, ensure_ascii=False), file=file)


def build_here(rows: list[tuple[str, str]], folder: Path, **options) -> Path:
    """Build a knowledge base of these documents in this process."""
    source, out = folder / "rows.jsonl", folder / "rows.db"
    write_source(source, rows)
    build(Source(source), out, SkipLog(source, strict=True), **options)
    return out


# --- Recall --------------------------------------------------------------------------------------------------------


def recall(xquad: Path, folder: Path) -> dict[str, float]:
    """Return, per language, the share of questions whose paragraph is the first result, and among the first 5."""
    paragraphs, questions = read_xquad(xquad)
    hits = {f"{language}@{depth}": [] for language in LANGUAGES for depth in (1, K)}
    with KnowledgeBase.open(build_here(paragraphs, folder, max_tokens=1024)) as base:
        for language, question, gold in questions:
            found = [passage.title for passage in base.search(question, K)]
            for depth in (1, K):
                hits[f"{language}@{depth}"].append(paragraphs[gold][0] in found[:depth])
    shares = {name: round(statistics.mean(values), 4) for name, values in hits.items()}
    print("   ".join(f"{name} {share:.4f}" for name, share in shares.items()))
    return shares


def read_xquad(folder: Path) -> tuple[list[tuple[str, str]], list[tuple[str, str, int]]]:
    """Return the paragraphs as (name, text), and the questions as (language, question, number of its paragraph)."""
    paragraphs, questions = [], []
    for language in LANGUAGES:
        articles = json.loads((folder / f"xquad.{language}.json").read_text(encoding="utf-8"))["data"]
        for article in articles:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    questions.append((language, question["question"], len(paragraphs)))
                paragraphs.append((f"p{len(paragraphs)}", paragraph["context"]))
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
    """Run the build command, and return its time, peak memory and size."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "knowledge.build", source, out]
    process = subprocess.Popen(command, cwd=timing.ROOT, stdout=sys.stderr)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"the build failed with status {os.waitstatus_to_exitcode(status)}; its message is above")
    return {
        "build_s": time.perf_counter() - start,
        "peak_rss_mb": usage.ru_maxrss / 1024,
        "file_mb": out.stat().st_size / 1e6,
    }


def peak_rss_mb() -> float:
    """Return the largest memory of this process so far. Only Unix tells it, as it does that of the build."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def timed_search(base: KnowledgeBase, query: str, titles: list[str] | None = None) -> tuple[float, list]:
    """Search, and return the milliseconds and the passages."""
    start = time.perf_counter()
    found = base.search(query, K, titles)
    return 1e3 * (time.perf_counter() - start), found


def time_searches(base: KnowledgeBase, queries: list[tuple[str, str, str]], inside_title: bool) -> dict[str, float]:
    """Return latencies and recall of some queries, inside the passage's document or in all documents."""
    times_ms, hits = [], 0
    for title, wanted, query in queries:
        milliseconds, found = timed_search(base, query, [title] if inside_title else None)
        times_ms.append(milliseconds)
        hits += wanted in [passage.id for passage in found]
    return {
        "p50_ms": statistics.median(times_ms),
        "p99_ms": statistics.quantiles(times_ms, n=100)[98],
        "max_ms": max(times_ms),
        "recall@5": hits / len(queries),
    }


def read(path: Path, sql: str, *values: object) -> list[tuple]:
    """Run a query on a knowledge base's file."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return connection.execute(sql, values).fetchall()


def sample_queries(path: Path, number: int) -> list[tuple[str, str, str]]:
    """Return (title, id of a passage, words of it), from documents all over the file."""
    rng = random.Random(0)
    ((last,),) = read(path, "SELECT max(rowid) FROM documents")
    queries = []
    while len(queries) < number:
        sql = "SELECT title, text FROM documents WHERE rowid >= ? LIMIT 1"
        ((title, text),) = read(path, sql, rng.randint(1, last))
        passages = text.split(SEPARATOR)
        place = rng.randrange(len(passages))
        words = passages[place].split()
        if len(words) > 2 * QUERY_WORDS:
            begin = rng.randrange(len(words) - QUERY_WORDS)
            queries.append((title, f"{title}#{place}", " ".join(words[begin : begin + QUERY_WORDS])))
    return queries


# --- Peer ----------------------------------------------------------------------------------------------------------


def peer(num_documents: int, folder: Path, repeats: int) -> dict:
    """Compare with rank_bm25 on the same passages: latency by turns, and how often both find the right passage."""
    rows = list(islice(documents(num_documents * 1.2e-3, sentences=10), num_documents))
    path = build_here(rows, folder, max_tokens=4096)
    queries = sample_queries(path, 40)
    splits = {"lower-case words, as KnowRL": lambda text: text.lower().split(), "our tokens": tokens.tokens}
    result = {"documents": len(rows)}
    with KnowledgeBase.open(path) as base:
        for name, split in splits.items():
            result[name] = compare_with_peer(base, rows, queries, split, repeats)
            print(f"{len(rows)} documents, {name}: {json.dumps(result[name])}", flush=True)
    return result


def compare_with_peer(base: KnowledgeBase, rows: list, queries: list, split: Callable, repeats: int) -> dict:
    """Ask all queries of both sides in turns; the times of a repeat are medians over its queries."""
    from rank_bm25 import BM25Okapi

    theirs = BM25Okapi([split(f"{title} {text}") for title, text in rows])
    medians_ms = {"ours": [], "rank_bm25": []}
    hits = {"ours": 0, "rank_bm25": 0}
    shared = 0
    for _ in range(repeats):
        times_ms = {"ours": [], "rank_bm25": []}
        for title, _, query in queries:
            milliseconds, passages = timed_search(base, query)
            start = time.perf_counter()
            best = np.argpartition(theirs.get_scores(split(query)), -K)[-K:]
            times_ms["rank_bm25"].append(1e3 * (time.perf_counter() - start))
            times_ms["ours"].append(milliseconds)
            our_titles = {passage.title for passage in passages}
            peer_titles = {rows[place][0] for place in best}
            hits["ours"] += title in our_titles
            hits["rank_bm25"] += title in peer_titles
            shared += len(our_titles & peer_titles)
        for side, values in times_ms.items():
            medians_ms[side].append(statistics.median(values))
    searches = repeats * len(queries)
    return {
        "ours_ms": statistics.median(medians_ms["ours"]),
        "rank_bm25_ms": statistics.median(medians_ms["rank_bm25"]),
        **timing.ratio(medians_ms["ours"], medians_ms["rank_bm25"]),
        "ours_recall@5": hits["ours"] / searches,
        "rank_bm25_recall@5": hits["rank_bm25"] / searches,
        "shared_of_top_5": shared / searches / K,
    }


def cases(peers: list[dict]) -> list[dict]:
    """Make the cases that report.py reads."""
    found = []
    for row in peers:
        num_documents = row["documents"]
        for name, figures in row.items():
            if name == "documents":
                continue
            case = {
                "name": f"search, {num_documents} documents, {name}",
                "peer": "rank_bm25",
                "ratio": figures["ratio"],
                "ratio_range": figures["ratio_range"],
                "seconds": {side: {"median": figures[f"{side}_ms"] / 1e3} for side in ("ours", "rank_bm25")},
            }
            if num_documents in PEER_TARGETS:
                case["target"] = PEER_TARGETS[num_documents]
            found.append(case)
    return found


def main(argv: list[str] | None = None) -> dict:
    arguments = timing.parser("bench.knowledge", __doc__, ("none", "rank_bm25"), ())
    arguments.add_argument("--megabytes", type=float, default=20, help="size of the generated text; 0 leaves scale out")
    arguments.add_argument("--peer-documents", type=int, nargs="+", default=[7500], help="sizes of the peer part")
    smoke = {"megabytes": 0.5, "peer_documents": [200]}
    xquad = timing.ROOT.parent / "shared" / "data" / "xquad"
    arguments.add_argument("--xquad", type=Path, default=xquad, help="folder of xquad.en.json and xquad.zh.json")
    arguments.add_argument(
        "--folder", type=Path, help="folder for generated files; default: the system's temporary one"
    )
    options = timing.parse(arguments, argv, smoke=smoke)
    report = {"recall": None, "scale": None, "peer": []}
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        folder = Path(temporary)
        if (options.xquad / "xquad.en.json").exists() and not options.smoke:
            report["recall"] = recall(options.xquad, folder)
        if options.megabytes:
            report["scale"] = scale(options.megabytes, folder)
        if options.peer == "rank_bm25":
            report["peer"] = [peer(number, folder, options.repeats) for number in options.peer_documents]
    return timing.finish(
        "knowledge",
        options,
        cases(report["peer"]),
        {},
        **report,
        sqlite=sqlite3.sqlite_version,
        peak_rss_mb_of_this_process=peak_rss_mb(),
    )


if __name__ == "__main__":
    main()
