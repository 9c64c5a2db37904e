"""The middleware around Flask, FastAPI and Django, each in a process of its own behind a real HTTP server."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import unittest
from typing import Any, Dict, Iterator, List, Optional

import httpx
import websockets
import websockets.sync.client

import tidegate
from apps import POLICIES
from serving import PATIENCE, Server, free_port, within


class App:
    """An application of `apps` behind gunicorn (WSGI, one process forked from a loaded one) or uvicorn (ASGI)."""

    def __init__(self, name: str, server: Server, **settings: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        if name in ("flask_app", "django_wsgi"):
            run = ["gunicorn", "--preload", "--threads", "16", "--bind", f"127.0.0.1:{self.port}", "--no-control-socket"]
        else:
            # Without it uvicorn itself reads x-forwarded-for of callers on loopback.
            run = ["uvicorn", "--no-proxy-headers", "--port", str(self.port), "--lifespan", "auto"]
        environment = {**os.environ, "TIDEGATE_URL": server.url}
        environment.update({f"TIDEGATE_{name.upper()}": value for name, value in settings.items()})
        self.log = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, "-m", *run, f"apps:{name}"], env=environment, stdout=self.log, stderr=self.log
        )
        try:
            within(f"{name} listens", self._listens)
        except BaseException:
            self.close()
            raise

    def _listens(self) -> bool:
        if self._process.poll() is not None:
            raise AssertionError(f"the application ended: {self.said()}")
        with socket.socket() as connection:
            return connection.connect_ex(("127.0.0.1", self.port)) == 0

    def said(self) -> str:
        self.log.seek(0)
        return self.log.read().decode()

    def end(self) -> int:
        self._process.terminate()
        return self._process.wait(PATIENCE)

    def close(self) -> None:
        try:
            self.end()
        finally:
            self._process.kill()
            self._process.wait()
            self.log.close()


def asking(app: App) -> httpx.Client:
    """Returns a client that keeps no connection: gunicorn closes some while they are used."""
    return httpx.Client(base_url=app.url, timeout=PATIENCE, limits=httpx.Limits(max_keepalive_connections=0))


class Behind:
    """What holds for every framework."""

    name = ""
    server: Server
    app: App

    asks: httpx.Client

    @classmethod
    def setUpClass(cls: Any) -> None:
        cls.server = Server(POLICIES)
        cls.addClassCleanup(cls.server.__exit__)
        cls.app = App(cls.name, cls.server)
        cls.addClassCleanup(cls.app.close)
        cls.asks = asking(cls.app)
        cls.addClassCleanup(cls.asks.close)

    def free(self, path: str = "/stream") -> Optional[int]:
        with tidegate.Client(self.server.url, deadline=PATIENCE) as client:
            return client.peek({"request.path": path}).remaining

    def test_three_pass_then_429(self: Any) -> None:
        # Other tests have used the limit.
        self.server.kill()
        self.server.start()
        for left in (2, 1, 0):
            answer = self.asks.get("/limited?page=1")
            self.assertEqual((answer.status_code, answer.text), (200, "/limited"))
            self.assertIn(f"r={left}", answer.headers["ratelimit"])
        # What a caller says of himself does not help.
        for headers in ({}, {"x-forwarded-for": "198.51.100.7"}, {"x-real-ip": "198.51.100.7"}):
            answer = self.asks.get("/%6Cimited", headers=headers)
            self.assertEqual(answer.status_code, 429)
        self.assertTrue(3500 < int(answer.headers["retry-after"]) <= 3600, answer.headers)
        self.assertIn("r=0", answer.headers["ratelimit"])
        self.assertEqual(answer.headers["content-type"], "application/problem+json")
        self.assertEqual(answer.json()["violated-policies"], ["per-caller"])
        head = self.asks.head("/limited")
        self.assertEqual((head.status_code, head.content), (429, b""))
        self.assertEqual(self.asks.get("/other").status_code, 200)

    def test_attributes(self: Any) -> None:
        def statuses(path: str, headers: List[Dict[str, str]]) -> List[int]:
            return [self.asks.get(path, headers=one).status_code for one in headers]

        key, other = {"X-API-KEY": "a"}, {"x-api-key": "b"}
        self.assertEqual(statuses("/keyed", [key, key, key, other, {}]), [200, 200, 429, 200, 200])
        ann, bob = {"x-user": "ann"}, {"x-user": "bob"}
        self.assertEqual(statuses("/user", [ann, ann, ann, bob]), [200, 200, 429, 200])
        host = {"host": "API.example.com:8080"}
        self.assertEqual(statuses("/", [host, host, {}]), [200, 429, 200])
        # The path as the application sees it, escaped once.
        paths = ["/escaped/a%41", "/escaped/aA", "/escaped/a%2541", "/escaped/a%2541"]
        self.assertEqual([self.asks.get(path).status_code for path in paths], [200, 429, 200, 200])

    def test_places_until_the_response_has_ended(self: Any) -> None:
        with contextlib.ExitStack() as open_ones:
            streams = [open_ones.enter_context(self.asks.stream("GET", f"/stream?name={i}")) for i in range(2)]
            texts = [stream.iter_bytes() for stream in streams]
            self.assertEqual([next(text) for text in texts], [b"first\n"] * 2, "the first part comes before the last")
            refused = self.asks.get("/stream")
            self.assertEqual((refused.status_code, "retry-after" in refused.headers), (503, False))
            self.assertEqual(self.free(), 0)
            for i in range(2):
                self.asks.get(f"/end?name={i}")
            self.assertEqual([b"".join(text) for text in texts], [b"last\n"] * 2)
        within("places are free", lambda: self.free() == 2)

    def test_places_of_a_caller_who_leaves(self: Any) -> None:
        with self.asks.stream("GET", "/stream?name=left") as stream:
            text = stream.iter_bytes()
            self.assertEqual((next(text), self.free()), (b"first\n", 1))
        self.asks.get("/end?name=left")
        within("the place is free", lambda: self.free() == 2)

    def test_a_handler_that_raises(self: Any) -> None:
        self.assertEqual(self.asks.get("/raise").status_code, 500)
        within("the place is free", lambda: self.free() == 2)

    def test_what_a_handler_spent(self: Any) -> None:
        self.assertEqual(self.asks.get("/spend").text, "spent")
        within("it is settled", lambda: self.free("/spend") == 900)

    def test_the_status_decides_about_failures(self: Any) -> None:
        self.assertEqual([self.asks.get("/login").status_code for _ in range(3)], [401, 401, 429])

    def test_bodies_pass_untouched(self: Any) -> None:
        body = os.urandom(3_000_000)
        answer = self.asks.post("/upload", content=body)
        self.assertEqual((answer.status_code, answer.content == body), (200, True))
        within("the place is free", lambda: self.free() == 2)

    def test_requests_that_are_hard_to_read(self: Any) -> None:
        def ask(request: bytes) -> bytes:
            with socket.create_connection(("127.0.0.1", self.app.port), 30) as connection:
                connection.sendall(request + b"\r\nconnection: close\r\n\r\n")
                return b"".join(iter(lambda: connection.recv(65536), b""))

        for path, status in (
            (b"/%ff%00%0d%0aX-Y:%20z", (b"200", b"400", b"404")),
            (b"/" + b"a" * 3000, (b"200",)),
            (b"/limited%00", (b"200", b"404")),
        ):
            answer = ask(b"GET %s HTTP/1.1\r\nhost: x" % path)
            self.assertIn(answer[9:12], status, (path[:30], answer[:300]))
            self.assertNotIn(b"\r\nX-Y", answer)
        for headers in (b"x-api-key: \xff\xfe", b"x-api-key: " + b"k" * 8000, b"x-api-key: a\r\nx-api-key: b"):
            self.assertEqual(ask(b"GET /keyed HTTP/1.1\r\nhost: x\r\n" + headers)[9:12], b"200")

    def test_the_server_gone_and_back(self: Any) -> None:
        self.server.kill()
        for _ in range(3):
            answer = self.asks.get("/limited")
            self.assertEqual((answer.status_code, answer.json()["retry"]), (503, "unknown"))
        self.server.start()
        self.assertEqual(self.asks.get("/limited").status_code, 200)


class Flask(Behind, unittest.TestCase):
    name = "flask_app"


class FastApi(Behind, unittest.TestCase):
    name = "fastapi_app"

    def test_websockets(self) -> None:
        url = f"ws://127.0.0.1:{self.app.port}/ws"
        with websockets.sync.client.connect(url) as one, websockets.sync.client.connect(url):
            one.send("hello")
            self.assertEqual(one.recv(), "hello")
            with self.assertRaises(websockets.exceptions.InvalidStatus) as refused:
                websockets.sync.client.connect(url)
            self.assertEqual(refused.exception.response.status_code, 503)
            self.assertEqual(self.free("/ws"), 0)
        within("both have ended", lambda: self.free("/ws") == 2)


class Django(Behind, unittest.TestCase):
    name = "django_wsgi"


class DjangoAsgi(Behind, unittest.TestCase):
    name = "django_asgi"


class Settings(unittest.TestCase):
    """What a user sets, with Flask and FastAPI."""

    @contextlib.contextmanager
    def serving(self, name: str, **settings: str) -> Iterator[Any]:
        with Server(POLICIES) as server:
            app = App(name, server, **settings)
            try:
                with asking(app) as asks:
                    yield server, app, asks
            finally:
                app.close()

    def test_one_proxy(self) -> None:
        for name in ("flask_app", "fastapi_app"):
            with self.serving(name, proxies="1") as (server, app, asks):

                def status(*forwarded: str) -> int:
                    lines = [(b"x-forwarded-for", line.encode("latin-1")) for line in forwarded]
                    return int(asks.get("/limited", headers=lines).status_code)

                # Only the last entry is the proxy's.
                self.assertEqual([status(f"10.0.0.{i}, 192.0.2.1") for i in range(4)], [200, 200, 200, 429], name)
                self.assertEqual(status("192.0.2.9", "192.0.2.1"), 429)
                self.assertEqual(status("192.0.2.1, 192.0.2.2:4711"), 200)
                self.assertEqual(status("[2001:db8::1]:443"), 200)
                for bad in ("192.0.2.3, unknown", "192.0.2.3, 192.0.2.256", "x\u00e9"):
                    self.assertEqual(status(bad), 400, bad)
                self.assertEqual([status() for _ in range(4)], [200, 200, 200, 429])
                said = app.said()
                self.assertEqual(said.count("was answered with 400"), 1, said)

    def test_fail_open(self) -> None:
        for name in ("flask_app", "fastapi_app"):
            with self.serving(name, on_error="open") as (server, app, asks):
                server.kill()
                self.assertEqual([asks.get("/limited").status_code for _ in range(5)], [200] * 5)
                within("the log tells", lambda: "pass unlimited" in app.said())
                server.start()
                self.assertEqual([asks.get("/limited").status_code for _ in range(4)], [200, 200, 200, 429])

    def test_a_token_that_is_refused_lets_nobody_pass(self) -> None:
        for name in ("flask_app", "fastapi_app"):
            with Server(POLICIES, token="0123456789abcdef") as server:
                app = App(name, server, on_error="open")
                try:
                    self.assertEqual(httpx.get(f"{app.url}/limited", timeout=PATIENCE).status_code, 500)
                finally:
                    app.close()

    def test_lifespan_passes(self) -> None:
        with self.serving("fastapi_app") as (server, app, asks):
            self.assertEqual(asks.get("/").status_code, 200)
            app.end()
            self.assertIn("Application shutdown complete", app.said())

    def test_mistakes(self) -> None:
        def app(*_: Any) -> Any:
            return []

        asynchronous, sync = tidegate.AsyncClient("http://127.0.0.1:9"), tidegate.Client("http://127.0.0.1:9")
        with self.assertRaisesRegex(tidegate.InputError, "needs a tidegate.Client"):
            tidegate.WsgiMiddleware(app, asynchronous)  # type: ignore[arg-type]
        with self.assertRaisesRegex(tidegate.InputError, "needs a tidegate.AsyncClient"):
            tidegate.AsgiMiddleware(app, sync)  # type: ignore[arg-type]
        with self.assertRaisesRegex(tidegate.InputError, "list of names"):
            tidegate.WsgiMiddleware(app, sync, headers="x-api-key")
        for proxies in (-1, True, "1", None):
            with self.assertRaisesRegex(tidegate.InputError, "how many proxies"):
                tidegate.WsgiMiddleware(app, sync, proxies=proxies)  # type: ignore[arg-type]
