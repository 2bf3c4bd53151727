"""The gold paragraph among the first five results for XQuAD's 1,190 questions, in English and Chinese, from one file.

Floors: what rank_bm25 (0.986 English, 0.991 Chinese) and FTS5's own tokenizers (0.987 with Porter's stemmer, 0.928
Chinese with trigrams) reach with a file for each language. bench/LOG.md has what each ingredient gives.
"""

import json
from pathlib import Path

import pytest

from knowledge.store.base import KnowledgeBase

XQUAD = Path(__file__).resolve().parents[3] / "shared" / "data" / "xquad"


@pytest.fixture(scope="module")
def xquad():
    """Paragraphs by title, and (language, question, title of its paragraph)."""
    if not (XQUAD / "xquad.en.json").exists():
        pytest.skip(f"XQuAD is not at {XQUAD}")
    paragraphs, questions = {}, []
    for language in ("en", "zh"):
        for article in json.loads((XQUAD / f"xquad.{language}.json").read_text(encoding="utf-8"))["data"]:
            for paragraph in article["paragraphs"]:
                title = f"p{len(paragraphs)}"
                paragraphs[title] = paragraph["context"]
                questions += [(language, question["question"], title) for question in paragraph["qas"]]
    return paragraphs, questions


def recall(path, questions):
    hits: dict[str, list[bool]] = {"en": [], "zh": []}
    with KnowledgeBase(path) as base:
        for language, question, title in questions:
            hits[language].append(title in [passage.title for passage in base.search(question, k=5)])
    assert all(len(found) == 1190 for found in hits.values())
    return {language: sum(found) / len(found) for language, found in hits.items()}


def test_recall_with_passages_of_256_tokens(make_base, xquad):
    """The default: a long paragraph is in two passages, which costs a little."""
    paragraphs, questions = xquad
    found = recall(make_base(paragraphs), questions)
    assert found["en"] >= 0.985 and found["zh"] >= 0.989, found
