"""HTTP/1.1 as bytes, without a socket: one request, one answer, each with bounds.

Both clients use this in place of `http.client`, whose time limit holds for each read only (a server that sends a byte
now and then would never end a call), and which takes an interim answer for the final one.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from typing import Dict, List, Optional
from urllib.parse import urlsplit

from .errors import InputError, Unavailable

#: The server takes bodies up to this size.
MOST_REQUEST = 64 * 1024
#: An answer to a check has some 300 bytes for each limit.
MOST_HEAD = 64 * 1024
MOST_BODY = 4 * 1024 * 1024
#: Interim answers (1xx) that are skipped.
MOST_INTERIM = 8

_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [^\r\n\x00]*)?\Z")
_HEADER = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\r\n\x00]*?)[ \t]*\Z")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n\x00]*)?\Z")
_TOKEN = re.compile(r"[!-~]+\Z")


@dataclass(frozen=True)
class Address:
    """Where the server listens: a host and a port, or the path of a Unix socket."""

    url: str
    host: str
    port: int
    path: Optional[str]
    tls: Optional[ssl.SSLContext]
    #: The `host` header.
    authority: str


def address(url: str, tls: Optional[ssl.SSLContext]) -> Address:
    """Reads `http://HOST:PORT`, `https://HOST:PORT` or `unix:/PATH`."""
    what = f"the server's address {url!r}"
    if not isinstance(url, str) or any(ord(letter) <= 32 or ord(letter) == 127 for letter in url):
        raise InputError(f"{what} is not one: write http://127.0.0.1:8080")
    if url.startswith("unix:"):
        path = url[len("unix:") :]
        if not path.startswith("/") or path.startswith("//"):
            raise InputError(f"{what} is no path: write unix:/run/tidegate/http.sock")
        if tls is not None:
            raise InputError(f"{what} is a Unix socket, which has no TLS: leave out `tls`")
        return Address(url, "localhost", 0, path, None, "localhost")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InputError(f"{what} cannot be read ({error}): write http://127.0.0.1:8080") from None
    if parts.scheme not in ("http", "https") or not host:
        raise InputError(f"{what} has no scheme or no host: write http://127.0.0.1:8080")
    if parts.username is not None:
        raise InputError("the server's address has a login: pass `token` in its place")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise InputError(f"{what} has a path: write {parts.scheme}://{parts.netloc}")
    if parts.scheme == "http" and tls is not None:
        raise InputError(f"{what} is not encrypted, so `tls` would do nothing: write https://{parts.netloc}")
    if parts.scheme == "https" and tls is None:
        tls = ssl.create_default_context()
    if port is None:
        port = 443 if parts.scheme == "https" else 80
    named = f"[{host}]" if ":" in host else host
    return Address(url, host, port, None, tls, f"{named}:{port}")


class Request:
    """Writes the requests of one client."""

    def __init__(self, to: Address, token: Optional[str]) -> None:
        if token is not None and (not isinstance(token, str) or not _TOKEN.match(token)):
            raise InputError("`token` has other than printable ASCII characters; is there a line end? use .strip()")
        login = "" if token is None else f"authorization: Bearer {token}\r\n"
        self._head = f"host: {to.authority}\r\ncontent-type: application/json\r\n{login}content-length: "

    def write(self, path: str, body: bytes) -> bytes:
        """Returns a whole request. `path` is one of the client's own."""
        if len(body) > MOST_REQUEST:
            raise InputError(
                f"the request has {len(body)} bytes, and the server takes {MOST_REQUEST}: send shorter attributes"
            )
        return f"POST {path} HTTP/1.1\r\n{self._head}{len(body)}\r\n\r\n".encode("ascii") + body


@dataclass(frozen=True)
class Answer:
    """A whole answer. Header names are in lower case; of a repeated one the values are joined by commas."""

    status: int
    headers: Dict[str, str]
    body: bytes
    keep: bool


def nonsense(what: str) -> Unavailable:
    """Returns the error for bytes that are no answer."""
    return Unavailable(f"the server's answer is not HTTP ({what}): is there a Tidegate at this address?")


class Reader:
    """Puts an answer together from the bytes that arrive."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._body = bytearray()
        self._interim = 0
        self._status = 0
        self._headers: Dict[str, str] = {}
        self._keep = False
        #: The bytes that the body, or the present chunk, still lacks; `None` before the head is read, -1 until the end
        #: of the connection.
        self._lacks: Optional[int] = None
        self._chunked = False
        self._trailer = 0
        self.began = False
        self.answer: Optional[Answer] = None

    def feed(self, data: bytes) -> Optional[Answer]:
        """Takes bytes, and returns the answer once it is whole.

        # Errors
        `Unavailable` if they are no answer, or exceed a bound.
        """
        self.began = True
        self._bytes += data
        if self._lacks is None and not self._head():
            return None
        if self._chunked:
            return self._chunks()
        assert self._lacks is not None
        self._take(len(self._bytes) if self._lacks < 0 else self._lacks)
        return self._whole() if self._lacks == 0 else None

    def end(self) -> Answer:
        """Says that the connection has ended. Returns the answer if it ends with the connection."""
        if self._lacks == -1 and not self._chunked:
            self._keep = False
            return self._whole()
        if not self.began:
            raise Unavailable("the server closed the connection without an answer")
        raise Unavailable("the server closed the connection in the middle of its answer")

    def _head(self) -> bool:
        while True:
            end = self._bytes.find(b"\r\n\r\n", 0, MOST_HEAD)
            if end < 0:
                if len(self._bytes) >= MOST_HEAD:
                    raise nonsense(f"no end of its head within {MOST_HEAD} bytes")
                # What cannot become a status line is told now, not at the deadline.
                if not b"HTTP/1.".startswith(self._bytes[:7]):
                    raise nonsense("it begins with other bytes")
                return False
            lines = bytes(self._bytes[:end]).split(b"\r\n")
            del self._bytes[: end + 4]
            first = _STATUS_LINE.match(lines[0])
            if not first:
                raise nonsense("its first line")
            self._status = int(first.group(2))
            self._headers = _headers(lines[1:])
            if self._status >= 200:
                break
            self._interim += 1
            if self._status == 101 or self._interim > MOST_INTERIM:
                raise nonsense("it does not come to an end of interim answers")
        closes = "close" in self._headers.get("connection", "").lower()
        self._keep = first.group(1) == b"1" and not closes
        self._framing()
        return True

    def _framing(self) -> None:
        length, coding = self._headers.get("content-length"), self._headers.get("transfer-encoding")
        if coding is not None:
            if coding.strip().lower() != "chunked" or length is not None:
                raise nonsense("the length of its body is ambiguous")
            self._chunked, self._lacks = True, 0
        elif self._status in (204, 304):
            self._lacks = 0
        elif length is not None:
            # Repeated lines were joined by a comma.
            lengths = {one.strip() for one in length.split(",")}
            if len(lengths) != 1 or not re.fullmatch(r"[0-9]{1,15}", next(iter(lengths))):
                raise nonsense("the length of its body is ambiguous")
            self._lacks = int(next(iter(lengths)))
            if self._lacks > MOST_BODY:
                raise nonsense(f"a body of {self._lacks} bytes, more than {MOST_BODY}")
        else:
            self._lacks = -1

    def _take(self, most: int) -> None:
        piece = self._bytes[:most]
        del self._bytes[:most]
        self._body += piece
        if len(self._body) > MOST_BODY:
            raise nonsense(f"a body of more than {MOST_BODY} bytes")
        if self._lacks is not None and self._lacks > 0:
            self._lacks -= len(piece)

    def _line(self) -> Optional[bytes]:
        end = self._bytes.find(b"\r\n")
        if end < 0:
            if len(self._bytes) > MOST_HEAD:
                raise nonsense("a line of its body is too long")
            return None
        line = bytes(self._bytes[:end])
        del self._bytes[: end + 2]
        return line

    def _chunks(self) -> Optional[Answer]:
        # `_lacks` counts the data of a chunk and the line end behind it; -2 is the trailer.
        while True:
            if self._lacks == -2:
                line = self._line()
                if line is None:
                    return None
                self._trailer += len(line) + 2
                if self._trailer > MOST_HEAD:
                    raise nonsense("its trailer is too long")
                if not line:
                    return self._whole()
            elif self._lacks:
                if self._lacks > 2:
                    most = min(self._lacks - 2, len(self._bytes))
                    self._take(most)
                if self._lacks > 2 or len(self._bytes) < 2:
                    return None
                if self._bytes[:2] != b"\r\n":
                    raise nonsense("a chunk does not end where it should")
                del self._bytes[:2]
                self._lacks = 0
            else:
                line = self._line()
                if line is None:
                    return None
                size = _CHUNK.match(line)
                if not size:
                    raise nonsense("the size of a chunk")
                length = int(size.group(1), 16)
                if length + len(self._body) > MOST_BODY:
                    raise nonsense(f"a body of more than {MOST_BODY} bytes")
                self._lacks = length + 2 if length else -2

    def _whole(self) -> Answer:
        # Bytes behind the answer belong to nothing that was asked.
        keep = self._keep and not self._bytes
        self.answer = Answer(self._status, self._headers, bytes(self._body), keep)
        return self.answer


def _headers(lines: List[bytes]) -> Dict[str, str]:
    headers: Dict[str, str] = {}
    for line in lines:
        parsed = _HEADER.match(line)
        if not parsed:
            raise nonsense("a line of its head")
        name, value = parsed.group(1).decode("ascii").lower(), parsed.group(2).decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers
