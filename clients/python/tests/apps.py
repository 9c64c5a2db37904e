"""One application in Flask, FastAPI and Django, behind the middleware; TIDEGATE_URL says where the server is."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import asynccontextmanager
from typing import Any, AsyncIterator, Dict, Iterator, Set

import django
import fastapi
import flask
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import path
from fastapi.responses import PlainTextResponse, StreamingResponse

import tidegate

POLICIES = """
version: 1
store: { kind: memory, keys: 10000 }
client_ip: { trusted_proxies: [] }
policies:
  - { name: per-caller, match: { path: /limited }, by: [client.ip], limit: { rate: 1/h, burst: 3 } }
  - { name: per-key, match: { path: /keyed }, by: [request.header.x-api-key], absent: charge, limit: { rate: 1/h, burst: 2 } }
  - { name: per-user, match: { path: /user }, by: [user.id], limit: { rate: 1/h, burst: 2 } }
  - { name: escaped, match: { path: /escaped/aA }, limit: { rate: 1/h, burst: 1 } }
  - { name: by-host, match: { host: api.example.com }, limit: { rate: 1/h, burst: 1 } }
  - { name: streams, match: { path: [/stream, /raise, /ws, /upload] }, limit: { algorithm: concurrency, max: 2, ttl: 5min } }
  - { name: login, match: { path: /login }, by: [client.ip], charge: on-failure, limit: { algorithm: sliding-log, rate: 2/h } }
  - name: tokens
    match: { path: /spend }
    cost: { estimate: 800, settle: llm.output }
    limit: { rate: 1000/h }
"""

URL = os.environ.get("TIDEGATE_URL", "http://127.0.0.1:9")
ON_ERROR = os.environ.get("TIDEGATE_ON_ERROR", "closed")
PROXIES = int(os.environ.get("TIDEGATE_PROXIES", "0"))
DEADLINE = 10.0

#: The streams that a test has told to end.
told_to_end: Set[str] = set()

client = tidegate.Client(URL, on_error=ON_ERROR, deadline=DEADLINE)
async_client = tidegate.AsyncClient(URL, on_error=ON_ERROR, deadline=DEADLINE)


def parts(name: str) -> Iterator[bytes]:
    yield b"first\n"
    for _ in range(2000):
        if name in told_to_end:
            break
        time.sleep(0.01)
    yield b"last\n"


async def async_parts(name: str) -> AsyncIterator[bytes]:
    yield b"first\n"
    for _ in range(2000):
        if name in told_to_end:
            break
        await asyncio.sleep(0.01)
    yield b"last\n"


def told(rest: str, name: str) -> str:
    if rest == "end":
        told_to_end.add(name)
    return f"/{rest}"


def user_of(environ: Dict[str, Any]) -> Dict[str, str]:
    user = environ.get("HTTP_X_USER")
    return {"user.id": user} if user else {}


async def user_of_scope(scope: Any) -> Dict[str, str]:
    found = [value for name, value in scope["headers"] if name == b"x-user"]
    return {"user.id": found[0].decode()} if found else {}


flask_app = flask.Flask("shop")


@flask_app.route("/stream")
def flask_stream() -> Any:
    return flask.Response(parts(flask.request.args["name"]))


@flask_app.route("/raise")
def flask_raise() -> Any:
    raise ValueError("the handler raises")


@flask_app.route("/spend")
def flask_spend() -> Any:
    flask.request.environ["tidegate"].settle({"llm.output": 100})
    return "spent"


@flask_app.route("/login")
def flask_login() -> Any:
    return "wrong password", 401


@flask_app.route("/upload", methods=["POST"])
def flask_upload() -> Any:
    stream = flask.request.stream
    return flask.Response(iter(lambda: stream.read(10_000), b""))


@flask_app.route("/", defaults={"rest": ""})
@flask_app.route("/<path:rest>")
def flask_any(rest: str) -> Any:
    return told(rest, flask.request.args.get("name", ""))


flask_app.wsgi_app = tidegate.WsgiMiddleware(  # type: ignore[method-assign]
    flask_app.wsgi_app, client, headers=["X-Api-Key"], proxies=PROXIES, attributes=user_of
)


@asynccontextmanager
async def alive(app: fastapi.FastAPI) -> AsyncIterator[None]:
    yield
    await async_client.aclose()


fastapi_app = fastapi.FastAPI(lifespan=alive)
fastapi_app.add_middleware(
    tidegate.AsgiMiddleware, client=async_client, headers=["X-Api-Key"], proxies=PROXIES, attributes=user_of_scope
)


@fastapi_app.get("/stream")
async def fastapi_stream(name: str) -> Any:
    return StreamingResponse(async_parts(name))


@fastapi_app.get("/raise")
async def fastapi_raise() -> Any:
    raise ValueError("the handler raises")


@fastapi_app.get("/spend")
async def fastapi_spend(request: fastapi.Request) -> Any:
    request.scope["tidegate"].settle({"llm.output": 100})
    return PlainTextResponse("spent")


@fastapi_app.get("/login")
async def fastapi_login() -> Any:
    return PlainTextResponse("wrong password", 401)


@fastapi_app.post("/upload")
async def fastapi_upload(request: fastapi.Request) -> Any:
    body = await request.body()
    return StreamingResponse(body[at : at + 10_000] for at in range(0, len(body), 10_000))


@fastapi_app.websocket("/ws")
async def fastapi_ws(socket: fastapi.WebSocket) -> None:
    await socket.accept()
    try:
        while True:
            await socket.send_text(await socket.receive_text())
    except fastapi.WebSocketDisconnect:
        pass


@fastapi_app.get("/{rest:path}")
async def fastapi_any(rest: str, name: str = "") -> Any:
    return PlainTextResponse(told(rest, name))


def django_stream(request: HttpRequest) -> Any:
    name = request.GET["name"]
    return StreamingHttpResponse(async_parts(name) if "tidegate" in getattr(request, "scope", {}) else parts(name))


def django_raise(request: HttpRequest) -> Any:
    raise ValueError("the handler raises")


def django_spend(request: HttpRequest) -> Any:
    scope = getattr(request, "scope", None) or request.environ
    scope["tidegate"].settle({"llm.output": 100})
    return HttpResponse("spent")


def django_login(request: HttpRequest) -> Any:
    return HttpResponse("wrong password", status=401)


def django_upload(request: HttpRequest) -> Any:
    return StreamingHttpResponse(iter(lambda: request.read(10_000), b""))


def django_any(request: HttpRequest, rest: str = "") -> Any:
    return HttpResponse(told(rest, request.GET.get("name", "")))


urlpatterns = [
    path("stream", django_stream),
    path("raise", django_raise),
    path("spend", django_spend),
    path("login", django_login),
    path("upload", django_upload),
    path("", django_any),
    path("<path:rest>", django_any),
]
settings.configure(
    DEBUG=False, ALLOWED_HOSTS=["*"], ROOT_URLCONF="apps", SECRET_KEY="only for tests", MIDDLEWARE=[], LOGGING_CONFIG=None
)
django.setup()
django_wsgi = tidegate.WsgiMiddleware(
    get_wsgi_application(), client, headers=["X-Api-Key"], proxies=PROXIES, attributes=user_of
)
django_asgi = tidegate.AsgiMiddleware(
    get_asgi_application(), async_client, headers=["X-Api-Key"], proxies=PROXIES, attributes=user_of_scope
)
