"""python -m bench.knowledge [--megabytes 20] [--peer rank_bm25|none] [--peer-documents 7500 60000] [--xquad DIR]
[--folder DIR]

How well and how fast is the knowledge base?
  recall   the gold paragraph among the first 5 results for XQuAD's questions, English and Chinese from one file, and what each
           ingredient gives; skipped where XQuAD's files are not at hand
  scale    a build of generated text in a process of its own: MB/s, peak memory, size; then the latency of searches
  peer     rank_bm25 on the same passages and queries, alternately: as KnowRL uses it (lower-case words), and given our tokens

Generated text has two-regime Zipf word frequencies (Ferrer i Cancho and Sole 2001): exponent 1 for the 8,000 most
frequent words, real stop words first, and 1.6 beyond. Queries are 12 successive words of a passage, so the passage
itself is the right answer. The last line of stdout is JSON.
"""

import json
import os
import random
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from bench import timing
from knowledge.build import SkipLog, build
from knowledge.store import fulltext, rank, tokens
from knowledge.store.base import KnowledgeBase
from knowledge.store.passages import SEPARATOR
from knowledge.store.source import Source

NUM_WORDS, FREQUENT, QUERY_WORDS, K = 300_000, 8000, 12, 5


# Generated text


def vocabulary(rng: np.random.Generator) -> np.ndarray:
    """The stop words, then made-up words, short ones first."""
    onsets = [*"bcdfghjklmnprstvwz", "br", "ch", "cl", "dr", "gr", "pl", "sh", "st", "th", "tr"]
    syllables = [onset + vowel for onset in onsets for vowel in ("a", "e", "i", "o", "u", "ai", "ea", "ou")]
    made = {}
    while len(made) < NUM_WORDS:
        parts = rng.integers(len(syllables), size=int(rng.integers(2, 5)))
        made["".join(syllables[part] for part in parts) + "nrsl "[int(rng.integers(5))].strip()] = None
    return np.array(
        [*sorted(tokens.STOP_WORDS), *sorted(set(made) - tokens.STOP_WORDS, key=lambda word: (len(word), word))],
        dtype=object,
    )


def documents(megabytes: float, seed: int = 0, sentences: int = 48) -> Iterator[tuple[str, str]]:
    """(title, text) of about `sentences` sentences of 8 to 25 words each, until there are so many MB."""
    rng = np.random.default_rng(seed)
    words = vocabulary(rng)
    ranks = np.arange(len(words)) + 2.7
    frequency = np.where(ranks < FREQUENT, 1 / ranks, FREQUENT**0.6 / ranks**1.6)
    cumulative = np.cumsum(frequency / frequency.sum())
    num_bytes = number = 0
    while num_bytes < megabytes * 1e6:
        drawn, position = words[np.searchsorted(cumulative, rng.random(1 << 17))], 0
        while position < len(drawn) - 2 * sentences * 25 and num_bytes < megabytes * 1e6:
            text = []
            for length in rng.integers(8, 26, size=int(rng.integers(sentences // 2, sentences * 3 // 2 + 1))):
                text.append(" ".join(drawn[position : position + length]).capitalize() + ".")
                position += length
            title = " ".join(words[rng.integers(1000, len(words), 2)]).title() + f" {number}"
            number, num_bytes = number + 1, num_bytes + sum(map(len, text)) + len(text)
            yield title, " ".join(text)


def write_source(path: Path, rows: Iterator[tuple[str, str]]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        for title, text in rows:
            print(json.dumps({"title": title, "text": text}, ensure_ascii=False), file=file)


def build_here(rows: list[tuple[str, str]], folder: Path, **options) -> Path:
    """A base of these rows, built in this process."""
    write_source(folder / "rows.jsonl", iter(rows))
    build(Source(folder / "rows.jsonl"), folder / "rows.db", SkipLog(folder / "rows.jsonl", strict=True), **options)
    return folder / "rows.db"


# Recall


def recall(xquad: Path, folder: Path) -> dict:
    """Share of questions whose paragraph is among the first 5 passages, per language and variant."""
    paragraphs, questions = [], []
    for language in ("en", "zh"):
        for article in json.loads((xquad / f"xquad.{language}.json").read_text(encoding="utf-8"))["data"]:
            for paragraph in article["paragraphs"]:
                questions += [(language, question["question"], len(paragraphs)) for question in paragraph["qas"]]
                paragraphs.append((article["title"], paragraph["context"]))
    bare = [(f"p{number}", text) for number, (_, text) in enumerate(paragraphs)]
    titled = [(f"{title.replace('_', ' ')} p{number}", text) for number, (title, text) in enumerate(paragraphs)]
    whole = {"max_tokens": 1024}
    results = {
        "whole paragraphs": _recall_of(bare, questions, folder, **whole),
        "whole paragraphs, titles": _recall_of(titled, questions, folder, **whole),
        "passages of 256 tokens": _recall_of(bare, questions, folder),
        "passages of 256 tokens, titles": _recall_of(titled, questions, folder),
    }
    for name, owner, attribute, value in (
        ("without spelling", fulltext, "spelling_key", lambda token: None),
        ("with k1 1.2, b 0.75", rank, "K1", 1.2),
        ("without stop words", tokens, "STOP_WORDS", frozenset()),
        ("without stems", tokens, "stem", lambda word: word),
    ):
        with patched(owner, attribute, value), patched(rank, "B", 0.75 if attribute == "K1" else rank.B):
            results[f"whole paragraphs, {name}"] = _recall_of(bare, questions, folder, **whole)
    for name, row in results.items():
        print(f"{name:42} " + "   ".join(f"{key} {value:.4f}" for key, value in row.items()))
    return results


def _recall_of(rows: list, questions: list, folder: Path, **options) -> dict:
    hits = {f"{language}{kind}": [] for language in ("en", "zh") for kind in ("@1", "@5", "@5 paragraphs")}
    with KnowledgeBase.open(build_here(rows, folder, **options)) as base:
        for language, question, gold in questions:
            found = [passage.title for passage in base.search(question, K)]
            more = dict.fromkeys(passage.title for passage in base.search(question, 2 * K))
            wanted = rows[gold][0]
            hits[f"{language}@1"].append(wanted in found[:1])
            hits[f"{language}@5"].append(wanted in found)
            hits[f"{language}@5 paragraphs"].append(wanted in list(more)[:K])
    return {name: round(statistics.mean(values), 4) for name, values in hits.items()}


@contextmanager
def patched(owner, attribute: str, value: object) -> Iterator[None]:
    before = getattr(owner, attribute)
    setattr(owner, attribute, value)
    tokens._TOKENS_OF.clear()
    try:
        yield
    finally:
        setattr(owner, attribute, before)
        tokens._TOKENS_OF.clear()


# Scale


def scale(megabytes: float, folder: Path) -> dict:
    """One build from a file in a fresh process, then searches."""
    source, out = folder / "generated.jsonl", folder / "generated.db"
    write_source(source, documents(megabytes))
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "knowledge.build", source, out], cwd=timing.ROOT, stdout=sys.stderr
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"the build failed with status {os.waitstatus_to_exitcode(status)}")
    result = {
        "megabytes": megabytes,
        "build_s": time.perf_counter() - start,
        "peak_rss_mb": usage.ru_maxrss / 1024,
        "file_mb": out.stat().st_size / 1e6,
    }
    result["build_mb_per_s"] = megabytes / result["build_s"]
    with KnowledgeBase.open(out) as base:
        queries = sample_queries(out, 300)
        result["passages"] = base.kind.meta["passages"]
        for name in ("within_cold", "within_warm", "everything"):
            times, hits = [], 0
            for title, wanted, query in queries:
                began = time.perf_counter()
                found = base.search(query, K, None if name == "everything" else [title])
                times.append(1e3 * (time.perf_counter() - began))
                hits += wanted in [passage.id for passage in found]
            result[name] = {
                "p50_ms": statistics.median(times),
                "p99_ms": statistics.quantiles(times, n=100)[98],
                "max_ms": max(times),
                "recall@5": hits / len(queries),
            }
        times = []
        for (word,) in read(out, "SELECT term FROM knowledge_terms ORDER BY passages DESC LIMIT 20"):
            began = time.perf_counter()
            base.search(word, K)
            times.append(1e3 * (time.perf_counter() - began))
        result["one_of_the_20_commonest_words"] = {"p50_ms": statistics.median(times), "max_ms": max(times)}
    print(json.dumps(result, indent=1))
    return result


def read(path: Path, sql: str, *values: object) -> list[tuple]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return connection.execute(sql, values).fetchall()


def sample_queries(path: Path, number: int) -> list[tuple[str, str, str]]:
    """(title, id of the passage, words of it), from documents all over the file."""
    rng, queries = random.Random(0), []
    ((last,),) = read(path, "SELECT max(rowid) FROM documents")
    while len(queries) < number:
        ((title, text),) = read(
            path, "SELECT title, text FROM documents WHERE rowid >= ? LIMIT 1", rng.randint(1, last)
        )
        passages = text.split(SEPARATOR)
        place = rng.randrange(len(passages))
        words = passages[place].split()
        if len(words) > 2 * QUERY_WORDS:
            begin = rng.randrange(len(words) - QUERY_WORDS)
            queries.append((title, f"{title}#{place}", " ".join(words[begin : begin + QUERY_WORDS])))
    return queries


# Peer


def peer(num_documents: int, folder: Path, repeats: int, num_queries: int = 40) -> dict:
    """rank_bm25 and ours on the same passages: medians over interleaved repeats, and whether both find the right
    passage."""
    from rank_bm25 import BM25Okapi

    rows = []
    for title, text in documents(num_documents * 1.2e-3, sentences=10):
        rows.append((title, text))
        if len(rows) == num_documents:
            break
    result = {"documents": len(rows)}
    path = build_here(rows, folder, max_tokens=4096)
    queries = sample_queries(path, num_queries)
    with KnowledgeBase.open(path) as base:
        for name, cut in (
            ("lower-case words, as KnowRL", lambda text: text.lower().split()),
            ("our tokens", tokens.tokens),
        ):
            theirs = BM25Okapi([cut(f"{title} {text}") for title, text in rows])
            times, hits, shared = ([], []), [0, 0], 0
            for _ in range(repeats):
                medians = ([], [])
                for title, _, query in queries:
                    began = time.perf_counter()
                    ours = [passage.title for passage in base.search(query, K)]
                    between = time.perf_counter()
                    scores = theirs.get_scores(cut(query))
                    best = np.argpartition(scores, -K)[-K:]
                    medians[1].append(time.perf_counter() - between)
                    medians[0].append(between - began)
                    found = {rows[place][0] for place in best}
                    hits = [hits[0] + (title in ours), hits[1] + (title in found)]
                    shared += len(found & set(ours))
                for side in (0, 1):
                    times[side].append(1e3 * statistics.median(medians[side]))
            searches = repeats * len(queries)
            result[name] = {
                "ours_ms": statistics.median(times[0]),
                "rank_bm25_ms": statistics.median(times[1]),
                **timing.ratio(*times),
                "ours_recall@5": hits[0] / searches,
                "rank_bm25_recall@5": hits[1] / searches,
                "shared_of_top_5": shared / searches / K,
            }
            print(f"{len(rows)} documents, {name}: {json.dumps(result[name])}", flush=True)
            del theirs
    return result


def cases(peers: list[dict]) -> list[dict]:
    """The comparisons, as report.py reads them."""
    targets = {7500: 8.0, 60000: 15.0}
    return [
        {
            "name": f"search, {row['documents']} documents, {name}",
            "peer": "rank_bm25",
            "ratio": row[name]["ratio"],
            "ratio_range": row[name]["ratio_range"],
            "seconds": {side: {"median": row[name][f"{side}_ms"] / 1e3} for side in ("ours", "rank_bm25")},
        }
        | ({"target": targets[row["documents"]]} if row["documents"] in targets else {})
        for row in peers
        for name in row
        if name != "documents"
    ]


def main(argv: list[str] | None = None) -> dict:
    arguments = timing.parser("bench.knowledge", __doc__, ("none", "rank_bm25"), ())
    arguments.add_argument(
        "--megabytes", type=float, default=20, help="generated text for the scale part; 0: leave it out"
    )
    arguments.add_argument("--peer-documents", type=int, nargs="+", default=[7500])
    arguments.add_argument(
        "--xquad",
        type=Path,
        default=timing.ROOT.parent / "shared" / "data" / "xquad",
        help="folder of xquad.en.json and xquad.zh.json",
    )
    arguments.add_argument(
        "--folder", type=Path, help="where the generated files go (default: the system's folder for temporary files)"
    )
    options = timing.parse(arguments, argv)
    report = {"recall@5": None, "scale": None, "peer": []}
    megabytes, documents_of_peer = (0.5, [200]) if options.smoke else (options.megabytes, options.peer_documents)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        if (options.xquad / "xquad.en.json").exists() and not options.smoke:
            report["recall@5"] = recall(options.xquad, Path(folder))
        if megabytes:
            report["scale"] = scale(megabytes, Path(folder))
        if options.peer == "rank_bm25":
            report["peer"] = [peer(number, Path(folder), options.repeats) for number in documents_of_peer]
    return timing.finish(
        "knowledge",
        options,
        cases(report["peer"]),
        {},
        **report,
        sqlite=sqlite3.sqlite_version,
        peak_rss_mb_of_this_process=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


if __name__ == "__main__":
    main()
