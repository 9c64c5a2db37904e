"""Middleware for WSGI: Flask, Django and others."""

from __future__ import annotations

from http import HTTPStatus
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Tuple, Type, Union

from ._calls import Value
from ._requests import Headers, Mistakes, Taken, Unreadable, added, refusal
from .client import Client, Work
from .errors import Denied, InputError, TidegateError

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

_ExcInfo = Union[Tuple[Type[BaseException], BaseException, TracebackType], Tuple[None, None, None], None]


class WsgiMiddleware:
    """Asks Tidegate about each request before the application sees it.

    Attributes are `client.ip`, `request.method`, `request.path`, `request.host`, `request.header.NAME` for the names in
    `headers`, and what `attributes(environ)` returns. `proxies`: how many proxies of yours stand before this program;
    their `X-Forwarded-For` is read, and without them none is.

    A refused request is answered with the status of the decision (429 unless a policy says otherwise), `Retry-After`
    and the rate limit headers; 503 if the server is gone and the client fail-closed; 400 if the request has no readable
    path or address. Places are held until the response has ended, and its status tells how the work ended.
    `environ["tidegate"]` is the `Work`: `environ["tidegate"].settle({"llm.output": 400})` tells what was spent.
    """

    def __init__(
        self,
        app: "WSGIApplication",
        client: Client,
        *,
        headers: Iterable[str] = (),
        proxies: int = 0,
        attributes: Optional[Callable[["WSGIEnvironment"], Mapping[str, Value]]] = None,
    ) -> None:
        if not isinstance(client, Client):
            raise InputError(f"WsgiMiddleware needs a tidegate.Client, not {client!r:.80}")
        self._app, self._client = app, client
        self._taken, self._attributes, self._mistakes = Taken(headers, proxies), attributes, Mistakes()

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        try:
            attributes = self._taken.attributes(
                str(environ.get("REQUEST_METHOD", "GET")), _path(environ), _headers(environ), environ.get("REMOTE_ADDR")
            )
            attributes.update(self._attributes(environ) if self._attributes else {})
            work = Work(self._client, attributes, {}, holds="request")
            work.__enter__()
        except Denied as denied:
            return _answer(environ, start_response, refusal(denied.decision))
        except (InputError, Unreadable) as error:
            return _answer(environ, start_response, self._mistakes.answer(error))
        environ["tidegate"] = work
        status = [0]

        def start(line: str, headers: Headers, exc_info: _ExcInfo = None) -> Any:
            status[0] = _status(line)
            headers = headers + added(work.decision, (name for name, _ in headers))
            return start_response(line, headers, exc_info) if exc_info else start_response(line, headers)

        try:
            response = self._app(environ, start)
        except BaseException as error:
            work.__exit__(type(error), error, error.__traceback__)
            raise
        if work.decision.ticket is None:
            # Nothing is to be told at the end: the server may send a file in its own way.
            return response
        return _Response(response, work, status)


class _Response:
    """A response that tells its end. The server calls `close`, also if the client has gone."""

    def __init__(self, response: Iterable[bytes], work: Work, status: List[int]) -> None:
        self._response, self._work, self._status = response, work, status
        self._error: Optional[BaseException] = None
        self._parts: Optional[Iterator[bytes]] = None
        self._ended = False

    def __iter__(self) -> "_Response":
        return self

    def __next__(self) -> bytes:
        try:
            if self._parts is None:
                self._parts = iter(self._response)
            return next(self._parts)
        except StopIteration:
            raise
        except BaseException as error:
            self._error = error
            raise

    def close(self) -> None:
        try:
            close = getattr(self._response, "close", None)
            if close is not None:
                close()
        except BaseException as error:
            self._error = error
            raise
        finally:
            if not self._ended:
                self._ended = True
                end(self._work, self._status[0], self._error)


def end(work: Work, status: int, error: Optional[BaseException]) -> None:
    """Ends the work of a request: by its status, unless the application has said how."""
    tell_status(work, status, error)
    kind = None if error is None else type(error)
    try:
        work.__exit__(kind, error, None)
    except TidegateError:
        # It is counted and logged, and the response is sent already.
        pass


def tell_status(work: Any, status: int, error: Optional[BaseException]) -> None:
    if error is None and 100 <= status <= 599 and not work.told_outcome():
        work.settle(status=status)


def _status(line: str) -> int:
    return int(line[:3]) if line[:3].isdigit() else 0


def _path(environ: Mapping[str, Any]) -> bytes:
    # Texts of WSGI are bytes, one a letter.
    path = str(environ.get("SCRIPT_NAME", "")) + str(environ.get("PATH_INFO", ""))
    return (path or "/").encode("latin-1", "replace")


def _headers(environ: Mapping[str, Any]) -> Dict[str, str]:
    headers = {}
    for name, value in environ.items():
        if name.startswith("HTTP_") and isinstance(value, str):
            headers[name[5:].replace("_", "-").lower()] = _text(value.encode("latin-1", "replace"))
    for name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
        if environ.get(name):
            headers[name.replace("_", "-").lower()] = _text(str(environ[name]).encode("latin-1", "replace"))
    return headers


def _text(value: bytes) -> str:
    # Bytes that are not UTF-8 become %FF, as in forward-auth.
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return "".join(chr(byte) if byte < 128 else f"%{byte:02X}" for byte in value)


def _answer(
    environ: Mapping[str, Any], start_response: "StartResponse", answer: Tuple[int, Headers, bytes]
) -> Iterable[bytes]:
    status, headers, body = answer
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Refused"
    start_response(f"{status} {phrase}", headers)
    return [] if environ.get("REQUEST_METHOD") == "HEAD" else [body]
