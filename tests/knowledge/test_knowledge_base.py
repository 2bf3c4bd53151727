"""The surface: look-up, search within titles and over everything, ready-made files, threads, a forked child."""

import os
import re
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from cells import rows
from commands import num_open
from making import refused

from knowledge.build import build
from knowledge.store.base import KnowledgeBase
from knowledge.store.database import fingerprint, identity


@pytest.fixture(scope="module")
def base(ours):
    with KnowledgeBase(ours) as opened:
        yield opened


# Look-up


LOOKUPS = rows(  # a title | the documents that it names, by / | how | which of its parts are missing
    """
    Alex | Alex | exact | ¦ Alex;Ż | Alex;Ż | exact | ¦ 黑豹队 | 黑豹队 | exact | ¦ Alex\0 | Alex | exact |
    Alex;AleX | Alex/AleX | parts | ¦ AleX;Alex | AleX/Alex | parts | ¦ Ż;Ź | Ż/Ź | parts |
    Alex ;; AleX;Alex ; | Alex/AleX | parts | ¦ Alex;alex;Nobody | Alex | parts | alex/Nobody
    Z | | missing | Z ¦ ; | | missing | ¦ \ud800 | | missing | ? ¦ x' OR '1'='1 | | missing | x' OR '1'='1
    """
)


@pytest.mark.parametrize("title, titles, how, missing", LOOKUPS)
def test_lookup(base, title, titles, how, missing):
    found = base.lookup(title)
    assert "/".join(found.missing) == missing
    if how != "missing" or found.how != "search":  # a guess is no title
        assert ("/".join(found.titles), found.how) == (titles, how)


def test_lookup_guesses_by_search_last_and_says_so(base):
    found = base.lookup("Mahatma Gandhi (politician);Salt March")
    assert found.how == "search" and found.titles[0] == "Mahatma Gandhi"
    assert found.missing == ("Mahatma Gandhi (politician)", "Salt March")
    assert base.lookup("Salt March", guess=False).how == "missing"


def test_coverage_counts_each_title_once(base):
    coverage = base.coverage(["Alex", "Alex", "Alex;AleX", "Salt March of Gandhi", "qqq"])
    assert [coverage.ways[how] for how in ("exact", "parts", "search", "missing")] == [1, 1, 1, 1]
    assert coverage.found == 0.5 and coverage.missing == ["Salt March of Gandhi", "qqq"]
    assert str(coverage).startswith("50.0% of 4 titles found")
    assert base.coverage(["Salt March of Gandhi"], guess=False).ways["missing"] == 1
    coverage = base.coverage(["Alex;Nobody", "Alex;Nobody;None", "qqq"])
    assert coverage.missing == ["Nobody", "None", "qqq"]
    assert str(coverage).endswith("1 missing; 3 single titles missing")
    assert base.coverage([]).found == 1.0


# Search


def test_search_within_titles_sees_only_their_documents(base):
    found = base.search("Alex was born in 1962 in Kassel", k=5, titles=["Alex", "AleX"])
    assert found[0].title == "Alex" and {passage.title for passage in found} <= {"Alex", "AleX"}
    assert found[0].id == "Alex#0" and "1962" in found[0].text and found[0].score > 0
    assert base.search("Gandhi", titles=[]) == base.search("born", titles=["Nobody"]) == []
    assert len(base.search("Alex was born in 1962", 10, ["Alex", "AleX", "Alex"])) == 2  # the passages of each once


def test_a_short_document_is_evidence_as_a_whole(make_base):
    """KnowRL takes the k best passages whatever their score, so what is said in other words is evidence too."""
    texts = [f"The word{letter} stood alone in that old valley.\n" * 8 for letter in "abcdefg"]
    texts[4] = "A smith forges iron in Orun and sells it to all. \n" * 8
    with KnowledgeBase(make_base({"Jon Orn": texts, "Other": "Jon Orn"}, max_tokens=64)) as base:

        def found(query, k, titles=("Jon Orn",)):
            return [passage.id for passage in base.search(query, k, titles)]

        number = len(found("x", 100))
        in_order = [f"Jon Orn#{place}" for place in range(number)]
        assert number >= 7 and found("x", 100) == in_order and found("x", 5) == in_order[:5]
        best = base.search("the iron of Jon Orn", 5, ["Jon Orn"])
        assert len(best) == 5 and "iron" in best[0].text and best[0].score > 0 and best[-1].score == 0
        assert found("the iron of Jon Orn", 3, ("Jon Orn", "Other"))[0] == "Other#0"
        assert base.search("nowhere", 5) == []  # everything: as before


SEARCHES = rows("""
    Who led the Salt March? | Mahatma Gandhi ¦ GANDHI'S MARCHES | Mahatma Gandhi ¦ mahatma | Mahatma Gandhi
    band from Oslo | AleX ¦ 1234 copies | AleX ¦ bakeries in Hamburg | Alex ¦ 唐朝 | 黑豹队 ¦ 防守 | 黑豹队
    """)  # "mahatma" is in the title alone


@pytest.mark.parametrize("query, title", SEARCHES)
def test_search_over_everything(base, query, title):
    assert base.search(query)[0].title == title


def test_results_are_ordered_stable_and_no_more_than_k_wherever_they_are_sought(base, documents):
    query = "letter of the Polish alphabet in Oslo"
    for k in (1, 2, 3):
        found = base.search(query, k)
        assert len(found) == len(base.search(query, k, titles=documents)) == k and found == base.search(query, k)
        assert [passage.score for passage in found] == sorted((passage.score for passage in found), reverse=True)
    assert [passage.title for passage in base.search("Oslo", 1, titles=["Ż", "AleX", "Alex"])] == ["AleX"]
    with pytest.raises(ValueError, match="k must be"):
        base.search("x", k=0)


OPERATORS = rows("""
    Alex AND Oslo | Alex Oslo ¦ NEAR(Alex Oslo, 5) | near Alex Oslo 5 ¦ Alex* | Alex ¦ tokens:alex | tokens alex
    "Alex Oslo" | Alex Oslo ¦ alex -oslo | alex oslo
    """)


def test_operators_have_no_other_meaning_than_their_words(base):
    for query, same_as in OPERATORS:
        assert base.search(query) == base.search(same_as), query


# Files that are not ours


@pytest.mark.parametrize("layout", ["knowrl", "factscore"])
def test_ready_made_files_are_served_as_they_are_and_searched_once_they_are_built(request, layout, tmp_path):
    path = request.getfixturevalue(layout)
    before = path.read_bytes()
    with KnowledgeBase(path) as base:
        assert base.lookup("Salt March").how == "missing"  # guesses need an index
        assert base.lookup("Mahatma Gandhi").how == "exact" and base.lookup("nobody").how == "missing"
        found = base.search("he was born in 1962 in Kassel", titles=base.lookup("Alex;AleX").titles)
        assert "1962" in found[0].text and not re.search("</?s>|SEPARATOR", "".join(passage.text for passage in found))
        refused(lambda: base.search("Who led the march?"), "has no full-text index", f"knowledge.build {path}")
    assert path.read_bytes() == before
    build(path, tmp_path / "ours.db")
    with KnowledgeBase(tmp_path / "ours.db") as base:
        assert base.search("Who led the march?")[0].title == "Mahatma Gandhi"
        assert base.lookup("Salt March").how == "search"


def test_a_large_file_that_differs_at_its_end_alone_is_another_file(tmp_path):
    found = set()
    for end in (b"one", b"two"):
        (tmp_path / "large.db").write_bytes(bytes(3 << 20) + end)
        found.add(fingerprint(tmp_path / "large.db"))
    assert len(found) == 2


def test_the_identity_of_a_base_is_that_of_its_content(make_base, ready_made, tmp_path):
    """Two texts of one length give files of one length, which a resumed run must tell apart."""
    one, two, again = ({"Alex": f"Alex was born in {city}."} for city in ("Kassel", "Kerpen", "Kassel"))
    built = [identity(make_base(documents)) for documents in (one, two, again)]
    assert built[0] == built[2] != built[1]
    given = enumerate((one, two, again))
    foreign = [identity(ready_made(tmp_path / f"{number}.db", documents)) for number, documents in given]
    assert foreign[0] == foreign[2] != foreign[1]
    assert built[0] != identity(make_base({"Alexa": "Alex was born in Kassel."}))
    assert built[0] != identity(make_base({"Alex": "Alex was born in Kassel. " * 200}, max_tokens=32))
    refused(lambda: identity(tmp_path / "none.db"), "No such file")


# Threads and processes


def test_a_forked_child_opens_its_own_connections(base):
    expected, inherited = base.search("Salt March"), num_open(base.path)
    child = os.fork()
    if child == 0:
        is_same = base.search("Salt March") == expected
        os._exit(0 if is_same and num_open(base.path) == inherited + 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert base.search("Salt March") == expected


def test_a_process_forks_while_its_threads_search(base):
    """A child would else find a lock of SQLite taken for ever, about once in ten times; and all find the same."""
    expected, is_over = base.search("Salt March"), threading.Event()
    band, found = base.search("band from Oslo"), []

    def search():
        while not is_over.is_set():
            base.lookup("AleX")
            found.append(base.search("band from Oslo") == band)

    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(search)
        codes = set()
        for _ in range(30):
            child = os.fork()
            if child == 0:
                signal.alarm(30)
                os._exit(0 if base.search("Salt March") == expected else 1)
            codes.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        is_over.set()
    assert codes == {0} and all(found)
