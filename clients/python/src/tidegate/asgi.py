"""Middleware for ASGI: FastAPI, Starlette, Django and others, on asyncio."""

from __future__ import annotations

from typing import Any, Awaitable, Callable, Dict, Iterable, List, Mapping, MutableMapping, Optional, Tuple, Union

from ._calls import Value
from ._requests import Headers, Mistakes, Taken, Unreadable, added, refusal
from .aio import AsyncClient, AsyncWork
from .errors import Denied, InputError, TidegateError
from .wsgi import _text, tell_status

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
More = Callable[[Scope], Union[Mapping[str, Value], Awaitable[Mapping[str, Value]]]]


class AsgiMiddleware:
    """Asks Tidegate about each request and each websocket before the application sees it; everything else, such as
    `lifespan`, passes.

    It takes the same attributes and answers in the same way as `WsgiMiddleware`; `attributes(scope)` may be async. A
    refused websocket is closed before it is accepted, with the status of the decision where the server can send one.
    Places are held until the last part of the response is sent, or the websocket has ended. `scope["tidegate"]` is the
    `AsyncWork`.
    """

    def __init__(
        self,
        app: App,
        client: AsyncClient,
        *,
        headers: Iterable[str] = (),
        proxies: int = 0,
        attributes: Optional[More] = None,
    ) -> None:
        if not isinstance(client, AsyncClient):
            raise InputError(f"AsgiMiddleware needs a tidegate.AsyncClient, not {client!r:.80}")
        self._app, self._client = app, client
        self._taken, self._attributes, self._mistakes = Taken(headers, proxies), attributes, Mistakes()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        try:
            work = AsyncWork(self._client, await self._attributes_of(scope), {}, holds="request")
            await work.__aenter__()
        except Denied as denied:
            await _answer(scope, receive, send, refusal(denied.decision))
            return
        except (InputError, Unreadable) as error:
            await _answer(scope, receive, send, self._mistakes.answer(error))
            return
        scope["tidegate"] = work
        response = _Response(work, send)
        try:
            await self._app(scope, receive, response.send)
        except BaseException as error:
            await response.end(error)
            raise
        await response.end(None)

    async def _attributes_of(self, scope: Scope) -> Dict[str, Value]:
        header: Dict[str, str] = {}
        for raw, value in scope.get("headers", ()):
            name = raw.decode("latin-1").lower()
            header[name] = f"{header[name]},{_text(value)}" if name in header else _text(value)
        peer = scope.get("client")
        attributes = self._taken.attributes(
            str(scope.get("method", "GET")), _path(scope), header, str(peer[0]) if peer else None
        )
        if self._attributes is not None:
            more = self._attributes(scope)
            attributes.update(more if isinstance(more, Mapping) else await more)
        return attributes


class _Response:
    """What the application sends, unchanged but for the rate limit headers; ends the work with its last part."""

    def __init__(self, work: AsyncWork, send: Send) -> None:
        self._work, self._send, self._status, self._ended = work, send, 0, False

    async def send(self, message: Message) -> None:
        kind = message["type"]
        if kind in ("http.response.start", "websocket.http.response.start"):
            self._status = int(message["status"])
            headers = list(message.get("headers", ()))
            present = (bytes(name).decode("latin-1") for name, _ in headers)
            message = {**message, "headers": headers + _raw(added(self._work.decision, present))}
        await self._send(message)
        parts = ("http.response.body", "http.response.zerocopysend")
        if kind == "http.response.pathsend" or (kind in parts and not message.get("more_body", False)):
            await self.end(None)

    async def end(self, error: Optional[BaseException]) -> None:
        if self._ended:
            return
        self._ended = True
        tell_status(self._work, self._status, error)
        try:
            await self._work.__aexit__(None if error is None else type(error), error, None)
        except TidegateError:
            # It is counted and logged, and the response is sent already.
            pass


def _path(scope: Scope) -> bytes:
    path, root = str(scope.get("path", "/")), str(scope.get("root_path", ""))
    if root and not (path == root or path.startswith(root.rstrip("/") + "/")):
        path = root.rstrip("/") + path
    return (path or "/").encode("utf-8", "surrogateescape")


def _raw(headers: Headers) -> List[Tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]


async def _answer(scope: Scope, receive: Receive, send: Send, answer: Tuple[int, Headers, bytes]) -> None:
    status, headers, body = answer
    kind = "http.response"
    if scope["type"] == "websocket":
        # Its handshake must be there before it is refused.
        message = await receive()
        if message["type"] != "websocket.connect":
            return
        if "websocket.http.response" not in (scope.get("extensions") or {}):
            await send({"type": "websocket.close", "code": 1008, "reason": ""})
            return
        kind = "websocket.http.response"
    await send({"type": f"{kind}.start", "status": status, "headers": _raw(headers)})
    await send({"type": f"{kind}.body", "body": b"" if scope.get("method") == "HEAD" else body})
