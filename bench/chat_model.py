"""Serve a chat model on this machine that knows the truth, with the habits and the troubles of gpt-4o-mini's service.

    with ChatModel() as model:
        model.url  ->  "http://127.0.0.1:41257/v1"

It answers the prompts of rewards/. As a decomposer it lists what a text states: each complete sentence once, without
tags. As a judge it compares an answer with its references by their words, whatever their spelling. Some of its lists
are JSON, numbered, fenced or introduced ("Here are the facts:").

Trouble comes with some texts: the service is busy (429 with Retry-After), the model refuses ("I'm sorry, …"), or its
reply is cut off. Trouble that lasts comes a second time. Form and trouble are drawn from the seed and the text, so they
are the same whenever and by whomever that is asked.
"""

import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

from knowledge.almanac import spelled

BUSY, REFUSES, CUT, NONE = "busy", "refuses", "cut", ""
TROUBLES = {BUSY: 0.1, REFUSES: 0.04, CUT: 0.04}  # the share of the texts with which each comes
LASTING = 0.5  # of the troubles
RETRY_AFTER_S = 1
SORRY = "I'm sorry, but I can't help with that."
NO_FACTS = "NON_FACTUAL: the text states nothing."
Facts = Sequence[tuple[int, str]]  # the number of the sentence, and the fact
Messages = Sequence[Mapping[str, str]]


# --- What it says ---------------------------------------------------------------------------------------------------


def lines(facts: Facts) -> str:
    return "\n".join(f"- [{number}] {fact}" for number, fact in facts)


def strings(facts: Facts) -> str:
    return json.dumps([fact for _, fact in facts])


def objects(facts: Facts) -> str:
    return json.dumps({"facts": [{"fact": fact, "sentence": number} for number, fact in facts]})


def fenced(facts: Facts) -> str:
    inside = json.dumps([{"fact": fact} for _, fact in facts], indent=1)
    return f"```json\n{inside}\n```"


def introduced(facts: Facts) -> str:
    numbered = [f"{place}. **{fact}**" for place, (_, fact) in enumerate(facts, 1)]
    return "\n".join(["Sure! Here are the facts:", "", *numbered])


LISTS: dict[Callable[[Facts], str], str] = {  # a form of a list, and of a grade
    lines: "{}",
    strings: '{{"grade": "{}"}}',
    objects: "**Grade:** {}",
    fenced: "```\n{}\n```",
    introduced: "Grade: {}\nThe candidate's answer was compared with the reference.",
}


def stated(text: str) -> Facts:
    """Return what a text states whose sentences are numbered: each fact once, and nothing that is not complete.

    >>> stated("[1] <think>The capital of Chad is Lima. [2] A language of Chad isFrench. [3] The")
    [(1, 'The capital of Chad is Lima.'), (2, 'A language of Chad is French.')]
    """
    _, *parts = re.split(r"\[(\d+)\] ", text)
    found: dict[str, int] = {}
    for number, part in zip(parts[::2], parts[1::2], strict=True):
        plain = re.sub(r"\bis(?=[A-Z])", "is ", re.sub(r"</?\w*>?", "", part))
        for sentence in re.split(r"(?<=[.!?])\s+", plain.strip()):
            if re.search(r" is \S", sentence) and not sentence.endswith("?"):
                found.setdefault(sentence, int(number))
    return [(number, fact) for fact, number in found.items()]


def grade(asked: str) -> str:
    """Return the letter of an answer: A if it has all words of a reference, C if it declines, else B."""
    quoted = re.findall(r'^<(\w+) \w+>\n(".*")\n</', asked, re.MULTILINE)
    said = [(name, json.loads(text)) for name, text in quoted]
    candidate = dict(said)["candidate"]
    if "don't know" in candidate:
        return "C"
    words = set(spelled(candidate).split())
    return "A" if any(words.issuperset(spelled(text).split()) for name, text in said if name == "reference") else "B"


# --- How it is served -----------------------------------------------------------------------------------------------


class Handler(BaseHTTPRequestHandler):
    """Reads a request and writes the reply; connections stay open."""

    protocol_version, wbufsize = "HTTP/1.1", -1

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        status, body = self.server.answer(request["messages"], request["max_tokens"])
        content = json.dumps(body).encode()
        self.send_response(status)
        if status == 429:
            self.send_header("retry-after", str(RETRY_AFTER_S))
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class ChatModel(ThreadingHTTPServer):
    """Serve the model within a `with` block, in threads of its own.

    delay_s: seconds before each reply; that it is busy, the service says at once. troubles: the share of the texts with
    which each trouble comes. lasting: the share of these that come a second time. counts: replies by their trouble.
    """

    request_queue_size = 512

    def __init__(
        self,
        seed: int = 0,
        delay_s: float = 0.0,
        troubles: Mapping[str, float] = TROUBLES,
        lasting: float = LASTING,
    ):
        super().__init__(("127.0.0.1", 0), Handler)
        self.seed, self.delay_s, self.troubles, self.lasting = seed, delay_s, troubles, lasting
        self.counts: Counter[str] = Counter()
        self.tries: Counter[str] = Counter()  # by what is asked
        self.room: dict[str, int] = {}  # tokens that the first reply may have
        self.lock = Lock()

    def __enter__(self) -> "ChatModel":
        Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    @property
    def spent_s(self) -> float:
        """Return the seconds of all replies."""
        return self.delay_s * (self.counts.total() - self.counts[BUSY])

    def answer(self, messages: Messages, max_tokens: int) -> tuple[int, dict[str, Any]]:
        """Return the status and the body of a reply.

        After a refusal the conversation goes on, after a cut there is twice the room.
        """
        asked = messages[1]["content"]
        form, trouble, times = self.drawn(asked)
        with self.lock:
            self.tries[asked] += 1
            cuts = max_tokens // self.room.setdefault(asked, max_tokens)
            tries = {BUSY: self.tries[asked], REFUSES: len(messages) // 2, CUT: cuts}
            trouble = trouble if tries.get(trouble, 0) <= times else NONE
            self.counts[trouble] += 1
        if trouble == BUSY:
            return 429, {"error": {"message": "Rate limit reached for gpt-4o-mini", "code": "rate_limit_exceeded"}}
        time.sleep(self.delay_s)
        text = SORRY if trouble == REFUSES else said(asked, form)
        is_cut = trouble == CUT
        message = {"role": "assistant", "content": text[: len(text) // 2] if is_cut else text}
        return 200, {"choices": [{"message": message, "finish_reason": "length" if is_cut else "stop"}]}

    def drawn(self, asked: str) -> tuple[Callable[[Facts], str], str, int]:
        """Draw the form of a reply, the trouble with it, and how often that comes."""
        text = re.sub(r"^(</?\w+) \w+>$", r"\1>", asked, flags=re.MULTILINE)  # without the random word of a fence
        rng = random.Random(f"{self.seed} {text}")
        shares = {**self.troubles, NONE: 1 - sum(self.troubles.values())}
        (trouble,) = rng.choices(list(shares), list(shares.values()))
        return rng.choice(list(LISTS)), trouble, 1 + (rng.random() < self.lasting)


def said(asked: str, form: Callable[[Facts], str]) -> str:
    """Return what the model says in a form to the prompt of the judge or of the decomposer."""
    if asked.endswith("A, B or C?"):
        return LISTS[form].format(grade(asked))
    _, text = re.search(r"^(=== \w+ ===)\n(.*)\n\1$", asked, re.DOTALL | re.MULTILINE).groups()
    facts = stated(text)
    return form(facts) if facts else NO_FACTS
