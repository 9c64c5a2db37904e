"""Both clients against servers that are no Tidegate, or half of one: real sockets that say what a test wants."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import threading
import time
import unittest
from typing import Any, Callable, Dict, List

import tidegate
from serving import ALLOWED, PATIENCE, answer, raw_server, read_request
from tidegate._wire import MOST_BODY, Reader

Serve = Callable[[socket.socket, int], None]
ANN = {"user.id": "ann"}


def says(data: bytes, stay: bool = False) -> Serve:
    """Answers each request with these bytes, then closes, or stays."""

    def serve(connection: socket.socket, number: int) -> None:
        while True:
            read_request(connection)
            connection.sendall(data)
            if not stay:
                return

    return serve


def check_both(url: str, calls: int = 1, **options: Any) -> List[tidegate.Decision]:
    """Checks with the client for threads, then with that for asyncio."""
    options = {"deadline": PATIENCE, **options}
    with tidegate.Client(url, **options) as client:
        decisions = [client.check(ANN) for _ in range(calls)]

    async def run() -> None:
        async with tidegate.AsyncClient(url, **options) as other:
            for _ in range(calls):
                decisions.append(await other.check(ANN))

    asyncio.run(run())
    return decisions


class Answers(unittest.TestCase):
    def decided(self, data: bytes, stay: bool = False, **options: Any) -> List[tidegate.Decision]:
        with raw_server(says(data, stay)) as url:
            return check_both(url, **options)

    def test_good_ones_in_every_form(self) -> None:
        chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n"
        half = len(ALLOWED) // 2
        pieces = b"%x;a=b\r\n%s\r\n%X\r\n%s\r\n0\r\nx: y\r\n\r\n" % (
            half, ALLOWED[:half], len(ALLOWED) - half, ALLOWED[half:],
        )  # fmt: skip
        for data in (
            answer(),
            chunked + pieces,
            b"HTTP/1.1 100 Continue\r\n\r\n" + answer(),
            b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n" + answer(),
            b"HTTP/1.0 200 OK\r\n\r\n" + ALLOWED,
            b"HTTP/1.1 200\r\nContent-Length: %d, %d\r\n\r\n" % (len(ALLOWED), len(ALLOWED)) + ALLOWED,
            answer(more=b"X-Unknown: \xff\xfe\r\n"),
        ):
            for decision in self.decided(data):
                self.assertTrue(decision.checked, (data, decision.error))

    def test_one_byte_at_a_time(self) -> None:
        def serve(connection: socket.socket, number: int) -> None:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            read_request(connection)
            for byte in b"HTTP/1.1 100 Continue\r\n\r\n" + answer():
                connection.sendall(bytes([byte]))

        with raw_server(serve) as url:
            self.assertTrue(all(one.checked for one in check_both(url)))

    def test_bad_ones_decide_nothing(self) -> None:
        ok, chunked = b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
        deep = b"[" * 100_000
        for data in (
            b"\x16\x03\x01garbage",
            b"SSH-2.0-OpenSSH_9.2\r\n",
            b"HTTP/2 200\r\n\r\n",
            b"HTTP/1.1 999999 OK\r\n\r\n",
            b"HTTP/1.1 2xx OK\r\n\r\n",
            b"HTTP/1.1 101 Switching Protocols\r\n\r\n" + answer(),
            b"HTTP/1.1 102 Processing\r\n\r\n" * 50 + answer(),
            ok + b"no colon here\r\n\r\n" + ALLOWED,
            ok + b" folded: x\r\n\r\n" + ALLOWED,
            ok + b"content-length: -1\r\n\r\n" + ALLOWED,
            ok + b"content-length: 5\r\ncontent-length: 6\r\n\r\n" + ALLOWED,
            ok + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            ok + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            ok + b"content-length: %d\r\n\r\n" % (MOST_BODY + 1),
            ok + b"x: " + b"y" * 70_000,
            chunked + b"fffffffff\r\n",
            chunked + b"-1\r\n",
            chunked + b"5\r\nabcdefg\r\n0\r\n\r\n",
            chunked + b"5\r\nab",
            answer()[:-5],
            ok + b"content-le",
            answer(b""),
            answer(b"<html>hello</html>"),
            answer(b"null"),
            answer(b"[]"),
            answer(b"{}"),
            answer(deep),
            answer(b'{"decision": ' + b"9" * 5000 + b"}"),
            answer(b'{"decision":"perhaps"}'),
            answer(b'{"decision":true}'),
            answer(b'{"decision":"denied"}'),
            answer(b'{"decision":"allowed"}', "429 Too Many Requests"),
            answer(b'{"decision":"allowed","remaining":"many"}'),
            answer(b'{"decision":"allowed","remaining":true}'),
            answer(b'{"decision":"allowed","delay_ms":"1"}'),
            answer(b'{"decision":"allowed","policies":{}}'),
            answer(b"{}", "500 Internal Server Error"),
            answer(b"bad gateway", "502 Bad Gateway"),
            answer(b"", "302 Found", b"location: http://127.0.0.1/\r\n"),
            answer(b"", "204 No Content"),
        ):
            with self.subTest(data[:80]):
                for on_error in ("open", "closed"):
                    for decision in self.decided(data, on_error=on_error):
                        self.assertEqual((decision.checked, decision.allowed), (False, on_error == "open"))
                        self.assertIsInstance(decision.error, tidegate.Unavailable)

    def test_a_page_of_another_server_is_a_mistake(self) -> None:
        for status in ("404 Not Found", "405 Method Not Allowed", "401 Unauthorized", "403 Forbidden"):
            with self.assertRaisesRegex(tidegate.TidegateError, "is there a Tidegate"):
                self.decided(answer(b"<html>", status), on_error="open")

    def test_endless_bodies_end(self) -> None:
        def endless(head: bytes, piece: bytes) -> Serve:
            def serve(connection: socket.socket, number: int) -> None:
                read_request(connection)
                connection.sendall(head)
                while True:
                    connection.sendall(piece)

            return serve

        ok = b"HTTP/1.1 200 OK\r\n"
        for serve in (
            endless(ok + b"\r\n", b" " * 65536),
            endless(ok + b"transfer-encoding: chunked\r\n\r\n", b"10000\r\n" + b" " * 65536 + b"\r\n"),
            endless(ok + b"transfer-encoding: chunked\r\n\r\n0\r\n", b"x: y\r\n" * 1000),
            endless(ok, b"x: y\r\n" * 1000),
            endless(b"", b"HTTP/1.1 102 Processing\r\n\r\n"),
        ):
            with raw_server(serve) as url:
                for decision in check_both(url):
                    self.assertNotIn("deadline", str(decision.error))
                    self.assertFalse(decision.checked)

    def test_what_is_behind_an_answer_is_not_the_next(self) -> None:
        denied = answer(b'{"decision":"denied","policy":"p"}', "429 Too Many Requests")

        def serve(connection: socket.socket, number: int) -> None:
            while True:
                read_request(connection)
                connection.sendall(answer() + denied)

        with raw_server(serve) as url:
            self.assertEqual([one.decision for one in check_both(url, calls=5)], ["allowed"] * 10)

        def later(connection: socket.socket, number: int) -> None:
            while True:
                read_request(connection)
                connection.sendall(answer())
                time.sleep(0.05)
                connection.sendall(denied)

        with raw_server(later) as url, tidegate.Client(url, deadline=PATIENCE) as client:
            for _ in range(3):
                self.assertTrue(client.check(ANN))
                time.sleep(0.2)

    def test_a_drip_does_not_prolong_the_deadline(self) -> None:
        def serve(connection: socket.socket, number: int) -> None:
            read_request(connection)
            connection.sendall(b"HTTP/1.1 200 OK\r\nx: ")
            while True:
                connection.sendall(b"y")
                time.sleep(0.02)

        with raw_server(serve) as url:
            begin = time.monotonic()
            for decision in check_both(url, deadline=0.4):
                self.assertIn("deadline of 0.4 s", str(decision.error))
            self.assertLess(time.monotonic() - begin, 5)

    def test_one_who_never_answers_or_never_accepts(self) -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            begin = time.monotonic()
            for decision in check_both(url, calls=3, deadline=0.3):
                self.assertFalse(decision.checked)
            self.assertLess(time.monotonic() - begin, 10)

    def test_headers_for_callers_are_clean(self) -> None:
        body = b'{"decision":"denied","policy":"p","retry":"after","retry_after_ms":1500}'
        more = b'retry-after: 2\r\nratelimit: "p\xff";r=0\r\nset-cookie: a=b\r\nx-ratelimit-limit: 1\r\nlocation: /\r\n'
        for decision in self.decided(answer(body, "429 Too Many Requests", more)):
            self.assertEqual((decision.retry_after, dict(decision.headers)), (1.5, {"retry-after": "2", "x-ratelimit-limit": "1"}))

    def test_bytes_in_any_pieces_and_any_garbage(self) -> None:
        random.seed(7)
        good = b"HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
        good += b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
        for _ in range(2000):
            reader, at = Reader(), 0
            while at < len(good):
                piece = good[at : at + random.randint(1, 30)]
                at += len(piece)
                reader.feed(piece)
            assert reader.answer is not None
            self.assertEqual((reader.answer.body, reader.answer.keep), (b"abcde", True))
        more = Reader().feed(good + b"H")
        self.assertFalse(more is None or more.keep, "what is behind the answer belongs to nothing")
        for _ in range(20000):
            data = bytearray(good if random.random() < 0.5 else answer())
            for _ in range(random.randint(1, 4)):
                data[random.randrange(len(data))] = random.choice(b"\r\n 0f:;\x00\xffaZ")
            reader = Reader()
            try:
                if reader.feed(bytes(data)) is None:
                    reader.end()
            except tidegate.Unavailable:
                pass


class Retries(unittest.TestCase):
    """A request is sent twice only where the second cannot charge again."""

    def closing(self, received: List[bytes]) -> Serve:
        """Answers the first request of the first connection, and closes at the second after reading it."""

        def serve(connection: socket.socket, number: int) -> None:
            while True:
                received.append(read_request(connection))
                if number == 0 and len(received) == 2:
                    return
                body = b'{"outcome":null,"policies":[]}' if b"/v1/settle" in received[-1] else ALLOWED
                connection.sendall(answer(body))

        return serve

    def test_a_check_that_was_read_is_not_sent_again(self) -> None:
        received: List[bytes] = []
        with raw_server(self.closing(received)) as url, tidegate.Client(url, deadline=PATIENCE) as client:
            self.assertEqual([client.check(ANN).checked for _ in range(3)], [True, False, True])
        self.assertEqual((len(received), client.counts().unchecked), (3, 1))

        async def run() -> List[bool]:
            async with tidegate.AsyncClient(url, deadline=PATIENCE) as other:
                return [(await other.check(ANN)).checked for _ in range(3)]

        received = []
        with raw_server(self.closing(received)) as url:
            self.assertEqual(asyncio.run(run()), [True, False, True])
        self.assertEqual(len(received), 3)

    def test_a_settlement_is_sent_again_once(self) -> None:
        received: List[bytes] = []
        with raw_server(self.closing(received)) as url, tidegate.Client(url, deadline=PATIENCE) as client:
            client.check(ANN)
            client.settle("ticket", cost=1)
        self.assertEqual(len(received), 3)
        self.assertEqual(received[1].split(b"\r\n")[0], received[2].split(b"\r\n")[0])
        received = []

        async def run() -> None:
            async with tidegate.AsyncClient(url, deadline=PATIENCE) as other:
                await other.check(ANN)
                await other.settle("ticket", cost=1)

        with raw_server(self.closing(received)) as url:
            asyncio.run(run())
        self.assertEqual(len(received), 3)

    def test_a_new_connection_is_not_tried_again(self) -> None:
        received: List[bytes] = []

        def serve(connection: socket.socket, number: int) -> None:
            received.append(read_request(connection))

        with raw_server(serve) as url, tidegate.Client(url, deadline=PATIENCE) as client:
            with self.assertRaises(tidegate.Unavailable):
                client.peek(ANN)
        self.assertEqual(len(received), 1)

    def test_a_server_that_is_full_is_asked_again_within_the_wait(self) -> None:
        full = answer(b'{"detail":"too many connections"}', "503 Service Unavailable", b"retry-after: 0\r\n")

        def serve(connection: socket.socket, number: int) -> None:
            read_request(connection)
            connection.sendall(full if number % 2 == 0 else answer())

        with raw_server(serve) as url, tidegate.Client(url, deadline=PATIENCE) as client:
            self.assertTrue(client.check(ANN, wait=5).checked)
            self.assertFalse(client.check(ANN).checked)


class Sent(unittest.TestCase):
    def test_no_value_leaves_its_quotes(self) -> None:
        received: List[bytes] = []
        lock = threading.Lock()

        def serve(connection: socket.socket, number: int) -> None:
            while True:
                request = read_request(connection)
                with lock:
                    received.append(request)
                connection.sendall(answer())

        nasty = '\r\nX-Tidegate-Token: t\r\n\r\nPOST /v1/settle HTTP/1.1\r\n\u2028"\\\x00\x7f é'
        with raw_server(serve) as url, tidegate.Client(url, deadline=PATIENCE) as client:
            calls: List[Dict[str, Any]] = [
                dict(attributes={nasty: "x"}),
                dict(attributes={"x": nasty}),
                dict(attributes=ANN, priority=nasty),
                dict(attributes=ANN, policies=[nasty]),
            ]
            for call in calls:
                client.check(**call)
            # Answered like a check.
            with self.assertRaises(tidegate.Unavailable):
                client.settle(nasty, {nasty: nasty}, outcome=nasty)
        self.assertEqual(len(received), 5)
        for request in received:
            head, _, body = request.partition(b"\r\n\r\n")
            self.assertEqual(len(head.split(b"\r\n")), 4)
            self.assertIn(json.dumps(nasty), body.decode("ascii"))
            self.assertEqual(body, json.dumps(json.loads(body), separators=(",", ":")).encode("ascii"))
