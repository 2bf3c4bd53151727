"""Say where a judge or decomposer is: its URL, the variable that holds its key, its model.

Values come from the configuration. A key is only ever named, never written down.
"""

import asyncio
import ipaddress
import logging
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

from grpo.base.errors import CONFIG, PREFLIGHT, UserError, check_all, keep_secret

OPENAI_URL = "https://api.openai.com/v1"
_log = logging.getLogger("rewards")
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible chat endpoint.

    name: the prefix of its metrics. plain_http: it may be on another machine of this network without TLS. Raises
    UserError, which names all that is wrong: a URL that is not allowed (see `check_url`), no model, no key (see
    `read_key`).
    """

    name: str
    base_url: str
    api_key_env: str
    model: str
    plain_http: bool = False

    def __post_init__(self) -> None:
        check_all(
            lambda: read_key(self.name, self.api_key_env),
            self._check_model,
            lambda: check_url(f"{self.name}_base_url", self.base_url, self.plain_http),
        )

    def _check_model(self) -> None:
        if not self.model:
            unset = f"{self.name}_model is not set"
            raise UserError(f"the {self.name} has no model", unset, f"set {self.name}_model", CONFIG)


def read_key(name: str, variable: str) -> str:
    """Return the key of the service `name`. Raise UserError (exit 3) if the variable holds none: no other counts."""
    if not re.fullmatch(r"[A-Z_][A-Z0-9_]*", variable):  # the value is not repeated: it may be a key
        raise UserError(
            f"{name}_api_key_env is no environment variable's name",
            "a name consists of A-Z, 0-9 and _",
            "put the key into a variable, and the variable's name here",
            CONFIG,
        )
    key = os.environ.get(variable, "").strip()
    if not key:
        raise UserError(
            f"the {name} has no key",
            f"the environment variable {variable} is not set",
            f"export {variable}=... (any word for a local server without keys); without any service: judge=offline",
            PREFLIGHT,
        )
    if not key.isascii() or not key.isprintable() or " " in key:
        raise UserError(
            f"the {name}'s key is malformed",
            f"{variable} holds a space or a character outside ASCII",
            "copy the key again",
            PREFLIGHT,
        )
    keep_secret(variable)
    return key


def read_endpoint(name: str, options: Mapping[str, Any]) -> Endpoint:
    """Read where the service `name` is from the configuration."""
    url = options[f"{name}_base_url"] or OPENAI_URL
    return Endpoint(
        name,
        url.rstrip("/").removesuffix("/chat/completions"),  # which the SDK adds again
        options[f"{name}_api_key_env"],
        options[f"{name}_model"] or "",
        options["api_plain_http"],
    )


def check_url(name: str, url: str, plain_http: bool = False) -> None:
    """Allow https, and http to this machine, without user, query or link-local address; else raise UserError (exit 2).

    plain_http: http is also allowed to the private addresses of a local network, and to names that stand for nothing
    else now. The log says so.
    """
    fix = "write it as https://host/v1 (Azure's as https://NAME.openai.azure.com/openai/v1)"
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError for a port that is no number, or too large
    except ValueError as error:
        raise UserError(f"{name} is no URL", str(error), fix, CONFIG) from None
    problem = _problem_with(parts)
    if problem:
        raise UserError(f"{name} is not allowed", problem, fix, CONFIG)
    if parts.scheme == "https" or _is_loopback(parts.hostname):
        return
    addresses = _addresses(parts.hostname)
    is_private = bool(addresses) and not any(address.is_global for address in addresses)
    if not (plain_http and is_private):
        raise UserError(
            f"{name} is not allowed",
            "over plain http, others on the way could read the prompts and the key",
            "use https; or, for a machine of your own network (whose name must stand for private addresses alone, such "
            "as 192.168.0.7), set api_plain_http=true",
            CONFIG,
        )
    _log.warning("note: %s is %s: prompts, answers and the key travel unencrypted", name, url)


async def check_address(endpoint: Endpoint) -> None:
    """Refuse a host whose name hides a link-local address. A name without an address fails when it is asked."""
    host = urlsplit(endpoint.base_url).hostname
    if any(map(_is_forbidden, await asyncio.to_thread(_addresses, host))):
        why = f"{host} stands for a link-local address"
        raise UserError(f"{endpoint.name}_base_url is not allowed", why, "name the service itself", PREFLIGHT)


def _problem_with(parts: SplitResult) -> str:
    if parts.scheme not in ("http", "https"):
        return "it is neither http nor https"
    if not parts.hostname:
        return "it names no host"
    if "@" in parts.netloc:
        return "it holds a user or a password"
    if parts.query or parts.fragment:
        return "it holds a query or a fragment"
    if any(map(_is_forbidden, _addresses(parts.hostname, socket.AI_NUMERICHOST))):
        return "link-local addresses serve a machine's own secrets"
    return ""


def _is_forbidden(address: Address) -> bool:
    """Recognise link-local addresses, and addresses that stand for no host."""
    return address.is_link_local or address.is_unspecified or address.is_multicast


def _is_loopback(host: str) -> bool:
    """Tell whether a host is written as an address of this machine; other names may come to stand for another."""
    return host == "localhost" or any(address.is_loopback for address in _addresses(host, socket.AI_NUMERICHOST))


def _addresses(host: str, flags: int = 0) -> list[Address]:
    """Return all addresses of a host, without the network that may be behind one (fe80::1%eth0); none if it has none.

    The system understands numbers written in any way: 2852039166, 0xa9.254. AI_NUMERICHOST: it asks no name server.
    """
    try:
        found = socket.getaddrinfo(host.partition("%")[0], None, flags=flags)
    except (OSError, UnicodeError):
        return []
    addresses = []
    for *_, (written, *_) in found:
        address = ipaddress.ip_address(written.partition("%")[0])
        addresses.append(getattr(address, "ipv4_mapped", None) or address)
    return addresses
