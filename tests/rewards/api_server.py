"""A small chat endpoint on this machine that behaves well or badly, as the test asks.

A behaviour is a coroutine function (server, request, writer). The first unused entry of `script` answers a request,
then `default`.
"""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any


@dataclass
class Request:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def text(self) -> str:
        return self.body["messages"][-1]["content"]


Behaviour = Callable[["ApiServer", Request, asyncio.StreamWriter], Awaitable[None]]


class ApiServer:
    """`with ApiServer() as server:` listens on 127.0.0.1, on an event loop in a thread of its own."""

    def __init__(self, *script: Behaviour, default: Behaviour | None = None):
        self.script, self.default = list(script), default or says("A")
        self.requests: list[Request] = []
        self.connections = self.open_connections = 0
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> "ApiServer":
        self.loop, started = asyncio.new_event_loop(), threading.Event()
        self.thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self.thread.start()
        assert started.wait(600)
        return self

    def __exit__(self, *exception: object) -> None:
        self.loop.call_soon_threadsafe(self.stopping.set)
        self.thread.join(600)

    def _run(self, started: threading.Event) -> None:
        self.loop.run_until_complete(self._serve(started))
        self.loop.close()

    async def _serve(self, started: threading.Event) -> None:
        self.stopping, self.tasks = asyncio.Event(), set()
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0, backlog=512)
        self.port = server.sockets[0].getsockname()[1]
        started.set()
        await self.stopping.wait()
        server.close()
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.add(asyncio.current_task())
        self.connections += 1
        self.open_connections += 1
        try:
            while True:
                request = await read_request(reader)
                self.requests.append(request)
                await (self.script.pop(0) if self.script else self.default)(self, request, writer)
                if writer.is_closing():
                    return
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.open_connections -= 1
            self.tasks.discard(asyncio.current_task())
            writer.close()


async def read_request(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(first.split()[1], headers, json.loads(body or b"{}"))


def chat(content: Any, finish_reason: str = "stop", **message: Any) -> dict[str, Any]:
    """A reply's body as an endpoint writes it."""
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "usage": {"prompt_tokens": 10, "completion_tokens": 2},
        "choices": [
            {"index": 0, "finish_reason": finish_reason, "message": {"role": "assistant", "content": content} | message}
        ],
    }


async def write(
    writer: asyncio.StreamWriter, body: bytes, status: int = 200, kind: str = "application/json", **headers: str
) -> None:
    extra = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    writer.write(
        f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n{extra}\r\n".encode() + body
    )
    await writer.drain()


def says(content: Any, finish_reason: str = "stop", after_s: float = 0.0) -> Behaviour:
    """Replies with a text, or with what a function makes of the request."""

    async def behave(server, request, writer) -> None:
        await asyncio.sleep(after_s)
        text = content(request) if callable(content) else content
        await write(writer, json.dumps(chat(text, finish_reason)).encode())

    return behave


def sends(body: bytes, status: int = 200, kind: str = "application/json", **headers: str) -> Behaviour:
    """Replies with these bytes."""

    async def behave(server, request, writer) -> None:
        await write(writer, body, status, kind, **headers)

    return behave


def fails(status: int, code: str | None = None, message: str = "no", **headers: str) -> Behaviour:
    """Replies with an error as OpenAI writes it."""
    return sends(json.dumps({"error": {"message": message, "type": code, "code": code}}).encode(), status, **headers)


async def hangs(server, request, writer) -> None:
    """Never replies."""
    await asyncio.sleep(3600)


async def resets(server, request, writer) -> None:
    """Cuts the connection without a reply."""
    writer.transport.abort()


async def drips(server, request, writer) -> None:
    """Sends a byte now and then, for ever."""
    writer.write(b"HTTP/1.1 200 X\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n{")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.02)


async def dies_midway(server, request, writer) -> None:
    """Ends in the middle of a body."""
    writer.write(b'HTTP/1.1 200 X\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{"choices": [')
    await writer.drain()
    writer.close()
