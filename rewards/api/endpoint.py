"""Say where a judge or decomposer is: its URL, the variable that holds its key, its model.

Values come from the configuration. A key is only ever named, never written down.
"""

import ipaddress
import logging
import os
import socket
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlsplit

from grpo.base.errors import CONFIG, PREFLIGHT, UserError, check_all, explained, keep_secret
from grpo.config.values import check_variable
from rewards.registry import Options

OPENAI_URL = "https://api.openai.com/v1"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
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
            partial(read_key, self.name, self.api_key_env),
            partial(check_model, self.name, self.model),
            partial(check_url, f"{self.name}_base_url", self.base_url, self.plain_http),
        )


def check_model(name: str, model: str) -> None:
    if not model:
        raise UserError(f"the {name} has no model", f"{name}_model is not set", f"set {name}_model")


def read_key(name: str, variable: str) -> str:
    """Return the key of the service `name`. Raise UserError (exit 3) if the variable holds none: no other counts."""
    with explained(
        ValueError,
        f"{name}_api_key_env is no environment variable's name",
        "put the key into a variable, and the variable's name here",
        CONFIG,
    ):
        check_variable(variable)
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


def read_endpoint(name: str, options: Options) -> Endpoint:
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
    """Allow https, and http to this machine, without user or query; else raise UserError (exit 2).

    plain_http: http is also allowed to the private addresses of a local network, and to names that stand for nothing
    else now. The log says so.
    """
    fix = "write it as https://host/v1 (Azure's as https://NAME.openai.azure.com/openai/v1)"
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError for a port that is no number, or too large
    except ValueError as error:
        raise UserError(f"{name} is no URL", str(error), fix) from None
    has_more = "@" in parts.netloc or parts.query or parts.fragment
    if parts.scheme not in ("http", "https") or not parts.hostname or has_more:
        raise UserError(
            f"{name} is not allowed",
            "it must begin with https:// or http:// and a host, and hold no user, password, query or fragment",
            fix,
        )
    if parts.scheme == "https" or parts.hostname in LOOPBACK:
        return
    addresses = _addresses(parts.hostname)
    is_private = bool(addresses) and not any(address.is_global for address in addresses)
    if not (plain_http and is_private):
        raise UserError(
            f"{name} is not allowed",
            "over plain http, others on the way could read the prompts and the key",
            "use https; or, for a machine of your own network (whose name must stand for private addresses alone, such "
            "as 192.168.0.7), set api_plain_http=true",
        )
    _log.warning("note: %s is %s: prompts, answers and the key travel unencrypted", name, url)


def _addresses(host: str) -> list[Address]:
    """Return all addresses of a host; none if it has none."""
    try:
        found = socket.getaddrinfo(host, None)
    except (OSError, UnicodeError):
        return []
    addresses = [ipaddress.ip_address(str(address[0]).partition("%")[0]) for *_, address in found]
    return [getattr(address, "ipv4_mapped", None) or address for address in addresses]
