"""What both middlewares take from a request, and how they refuse one."""

from __future__ import annotations

import ipaddress
import json
from typing import Dict, Iterable, List, Mapping, Optional, Tuple
from urllib.parse import quote

from ._calls import Seldom, Value, log
from .answers import Decision
from .errors import InputError

Headers = List[Tuple[str, str]]

_TITLES = {403: "Forbidden", 429: "Too Many Requests", 503: "Service Unavailable"}
#: As RFC 3986 allows in a path; an escaped byte stays escaped.
_IN_PATH = "/:@!$&'()*+,;=~"


class Unreadable(Exception):
    """The request does not say where it comes from."""


class Taken:
    """Which attributes a middleware takes."""

    def __init__(self, headers: Iterable[str], proxies: int) -> None:
        if isinstance(headers, str):
            raise InputError(f"`headers` is a list of names: pass [{headers!r}]")
        if isinstance(proxies, bool) or not isinstance(proxies, int) or proxies < 0:
            raise InputError(f"`proxies` is {proxies!r}: pass how many proxies of yours stand before this program, as 1")
        self.headers = [name.lower() for name in headers]
        self.proxies = proxies

    def attributes(
        self, method: str, path: bytes, header: Mapping[str, str], peer: Optional[str]
    ) -> Dict[str, Value]:
        """`header` has names in lower case, the values of repeated lines joined by commas."""
        attributes: Dict[str, Value] = {
            "client.ip": self._client(header.get("x-forwarded-for", ""), peer),
            "request.method": method,
            # The path that the application sees, escaped again: the server takes the escapes away once.
            "request.path": quote(path, safe=_IN_PATH),
        }
        host = header.get("host")
        if host:
            attributes["request.host"] = host
        for name in self.headers:
            if name in header:
                attributes[f"request.header.{name}"] = header[name]
        return attributes

    def _client(self, forwarded: str, peer: Optional[str]) -> str:
        """Returns the client's address: the peer's, or what the first of one's own proxies has seen.

        Each proxy adds the address that connected to it at the right end. What is further left was written by the
        client, who may write anything. A request with fewer entries did not come through all proxies.
        """
        entries = [entry.strip() for entry in forwarded.split(",") if entry.strip()]
        if 0 < self.proxies <= len(entries):
            found = _address(entries[-self.proxies])
            if found is None:
                raise Unreadable("x-forwarded-for has an entry that is no address")
            return found
        # A Unix socket has no address; Tidegate, too, takes its callers for this one.
        return _address(peer or "") or "127.0.0.1"


def _address(text: str) -> Optional[str]:
    """Reads an address, also `[2001:db8::1]:443`, `192.0.2.1:443` and `fe80::1%eth0`."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return str(ipaddress.ip_address(text.partition("%")[0]))
    except ValueError:
        return None


def refusal(decision: Decision) -> Tuple[int, Headers, bytes]:
    """Returns the answer to a refused request: what binds and the wait, and nothing of other callers."""
    title = _TITLES.get(decision.status, "Refused")
    body: Dict[str, object] = {"type": "about:blank", "title": title, "status": decision.status}
    if decision.policy is not None:
        body["violated-policies"] = [decision.policy]
    body["retry"] = decision.retry
    if decision.retry_after is not None:
        body["retry_after_ms"] = round(decision.retry_after * 1000)
    return problem(decision.status, body, list(decision.headers.items()))


def problem(status: int, body: Mapping[str, object], headers: Headers) -> Tuple[int, Headers, bytes]:
    content = json.dumps(body).encode("ascii")
    own = [("content-type", "application/problem+json"), ("content-length", str(len(content)))]
    return status, own + [("cache-control", "no-store")] + headers, content


class Mistakes:
    """Answers requests that cannot be checked. Callers may send many: the log tells of some."""

    def __init__(self) -> None:
        self._tell = Seldom()

    def answer(self, error: Exception) -> Tuple[int, Headers, bytes]:
        if self._tell.due():
            log.warning("a request was answered with 400, since Tidegate cannot decide about it: %s", error)
        return problem(400, {"type": "about:blank", "title": "Bad Request", "status": 400}, [])


def added(decision: Decision, present: Iterable[str]) -> Headers:
    """Returns the rate limit headers of an answer that passes, without those that the application has set."""
    known = {name.lower() for name in present}
    return [(name, value) for name, value in decision.headers.items() if name not in known]
