"""The gold paragraph among the first five results for XQuAD's 1,190 questions, in English and Chinese, from one file.

Floors: what rank_bm25 (0.986 English, 0.991 Chinese) and FTS5's own tokenizers (0.987 with Porter's stemmer, 0.928
Chinese with trigrams) reach with a file for each language. bench/LOG.md has what each ingredient gives.
"""

import json
from collections import Counter

from making import real_data

from knowledge.store.base import KnowledgeBase


def test_recall_with_passages_of_256_tokens(make_base):
    """The default: a long paragraph is in two passages, which costs a little."""
    paragraphs, asked, hits = {}, [], Counter()
    for language in ("en", "zh"):
        for article in json.loads(real_data(f"xquad/xquad.{language}.json").read_text(encoding="utf-8"))["data"]:
            for paragraph in article["paragraphs"]:
                title = f"p{len(paragraphs)}"
                paragraphs[title] = paragraph["context"]
                asked += [(language, question["question"], title) for question in paragraph["qas"]]
    with KnowledgeBase(make_base(paragraphs)) as base:
        for language, question, title in asked:
            hits[language] += title in [passage.title for passage in base.search(question, k=5)]
    assert hits["en"] >= 0.985 * 1190 and hits["zh"] >= 0.989 * 1190 and len(asked) == 2 * 1190, hits
