"""The examples of docs/python.md, as they stand there."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
import threading
import time
import types
import unittest
import wsgiref.simple_server
from typing import Any, AsyncIterator, Dict, Iterator, List, Tuple

import httpx
import uvicorn

import tidegate
from serving import ROOT, Server, free_port, within

ADDRESS = "http://127.0.0.1:8080"


class Quiet(wsgiref.simple_server.WSGIRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        text = (ROOT / "docs" / "python.md").read_text("utf-8")
        blocks: List[Tuple[str, str]] = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        (cls.policies,) = [body for kind, body in blocks if kind == "yaml"]
        cls.examples = [body for kind, body in blocks if kind == "python"]

    policies: str
    examples: List[str]

    @contextlib.contextmanager
    def having_run(self, *words: str) -> Iterator[Dict[str, Any]]:
        """Runs the first example and those with these words, in the order of the page, against a new server."""
        chosen = [self.examples[0]] + [one for one in self.examples[1:] if any(word in one for word in words)]
        self.assertEqual(len(chosen), len(words) + 1)
        with Server(self.policies) as server:
            names: Dict[str, Any] = {"__name__": "page", "server": server}
            for example in chosen:
                self.assertTrue("AsyncClient" not in example or ADDRESS in example)
                exec(compile(example.replace(ADDRESS, server.url), "docs/python.md", "exec"), names)
            try:
                yield names
            finally:
                names["client"].close()

    def test_every_example_is_run(self) -> None:
        marks = ["def answer", "def stream", "client.check(", "WsgiMiddleware", "AsgiMiddleware", 'on_error="open"']
        self.assertEqual([mark in one for mark, one in zip(marks, self.examples)], [True] * len(self.examples))
        self.assertEqual(len(marks), len(self.examples))

    def test_spend(self) -> None:
        reply = types.SimpleNamespace(input=700, output=600, text="42")
        with self.having_run() as names:
            answer = names["answer"]
            self.assertEqual(answer("ann", "why?", lambda prompt: reply), "42")
            self.assertRegex(answer("ann", "why?", lambda prompt: reply), r"tokens: try again in \d+\.\d+ s")
            with self.assertRaises(ZeroDivisionError):
                answer("bob", "why?", lambda prompt: 1 / 0)
            left = names["client"].peek({"app": "chat", "user.id": "bob"}, policies=["tokens", "answers"])
            self.assertEqual({limit.name: limit.remaining for limit in left.limits}, {"tokens": 2000, "answers": 8})

    def test_stream(self) -> None:
        async def model() -> AsyncIterator[Tuple[str, int]]:
            for tokens in (10, 20, 30):
                yield str(tokens), tokens

        async def run(stream: Any) -> List[str]:
            return [text async for text in stream("ann", model)]

        async def left_early(stream: Any) -> None:
            texts = stream("bob", model)
            await texts.__anext__()
            await texts.aclose()

        with self.having_run("def stream") as names:
            self.assertEqual(asyncio.run(run(names["stream"])), ["10", "20", "30"])
            asyncio.run(left_early(names["stream"]))
            for user, left in (("ann", 1950), ("bob", 1970)):
                limits = names["client"].peek({"app": "chat", "user.id": user}).limits
                self.assertEqual({one.name: one.remaining for one in limits}, {"tokens": left, "answers": 8})

    def test_check(self) -> None:
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            with self.having_run("client.check(") as names:
                peeked = names["client"].peek({"app": "chat", "user.id": "ann"}, policies=["tokens"])
        self.assertEqual((said.getvalue(), peeked.remaining), ("", 1820))

    def test_flask(self) -> None:
        with self.having_run("WsgiMiddleware") as names:
            port = free_port()
            httpd = wsgiref.simple_server.make_server("127.0.0.1", port, names["app"].wsgi_app, handler_class=Quiet)
            threading.Thread(target=httpd.serve_forever, daemon=True).start()
            try:
                statuses = [httpx.get(f"http://127.0.0.1:{port}/").status_code for _ in range(6)]
            finally:
                httpd.shutdown()
                httpd.server_close()
            self.assertEqual(statuses, [200] * 5 + [429])

    def test_fastapi(self) -> None:
        with self.having_run("AsgiMiddleware") as names:
            port = free_port()
            server = uvicorn.Server(uvicorn.Config(names["api"], port=port, log_level="error"))
            thread = threading.Thread(target=server.run)
            thread.start()
            try:
                within("uvicorn listens", lambda: server.started)
                statuses = [httpx.get(f"http://127.0.0.1:{port}/").status_code for _ in range(6)]
            finally:
                server.should_exit = True
                thread.join()
            self.assertEqual(statuses, [200] * 5 + [429])

    def test_gone(self) -> None:
        reply = types.SimpleNamespace(input=1, output=1, text="42")
        with self.having_run('on_error="open"') as names:
            names["server"].kill()
            begin = time.monotonic()
            self.assertEqual(names["answer"]("ann", "why?", lambda prompt: reply), "42")
            self.assertLess(time.monotonic() - begin, 5)
            self.assertEqual(names["client"].counts(), tidegate.Counts(checks=1, unchecked=1))
