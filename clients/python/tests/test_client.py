"""Both clients against a real server that is slow, killed, or asked by many; and mistakes of their users."""

from __future__ import annotations

import asyncio
import errno
import os
import pickle
import signal
import socket
import ssl
import subprocess
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Awaitable, Callable, Dict, List, Tuple, TypeVar

import tidegate
from serving import PATIENCE, Server, free_port, within

T = TypeVar("T")

POLICIES = """
version: 1
store: { kind: memory, keys: 10000 }
client_ip: { trusted_proxies: [] }
policies:
  - { name: many, match: { attributes: { app: many } }, by: [user.id], limit: { rate: 1/h, burst: 1000000 } }
  - { name: few, match: { attributes: { app: few } }, by: [user.id], limit: { rate: 1/h, burst: 50 } }
  - { name: places, match: { attributes: { app: places } }, by: [user.id], limit: { algorithm: concurrency, max: 2, ttl: 5min } }
  - { name: paced, match: { attributes: { app: paced } }, by: [user.id], limit: { rate: 1/h, burst: 1, max_wait: 2h } }
  - name: tokens
    match: { attributes: { app: tokens } }
    by: [user.id]
    cost: { estimate: 800, settle: llm.output }
    limit: { rate: 1000/h }
"""
MANY = {"app": "many", "user.id": "ann"}
PLACES = {"app": "places", "user.id": "ann"}


class WithServer(unittest.TestCase):
    server: Server

    @classmethod
    def setUpClass(cls) -> None:
        cls.server = Server(POLICIES)
        cls.addClassCleanup(cls.server.__exit__)

    def client(self, **options: Any) -> tidegate.Client:
        client = tidegate.Client(self.server.url, **{"deadline": PATIENCE, **options})
        self.addCleanup(client.close)
        return client

    def run_async(self, run: Callable[[tidegate.AsyncClient], Awaitable[T]], **options: Any) -> T:
        async def whole() -> T:
            async with tidegate.AsyncClient(self.server.url, **{"deadline": PATIENCE, **options}) as client:
                return await asyncio.wait_for(run(client), 3 * PATIENCE)

        return asyncio.run(whole())

    def free_places(self, user: str) -> Any:
        with tidegate.Client(self.server.url, deadline=PATIENCE) as client:
            return client.peek({"app": "places", "user.id": user}).remaining

    def left(self, app: str, user: str) -> Any:
        with tidegate.Client(self.server.url, deadline=PATIENCE) as client:
            (limit,) = client.peek({"app": app, "user.id": user}).limits
            return limit.remaining


class Connections(WithServer):
    def test_one_connection_for_a_thousand_calls(self) -> None:
        client = self.client()
        for _ in range(1000):
            self.assertTrue(client.check(MANY))
        self.assertEqual((client.counts().checks, client.counts().connections), (1000, 1))

        async def run(other: tidegate.AsyncClient) -> tidegate.Counts:
            for _ in range(1000):
                self.assertTrue(await other.check(MANY))
            return other.counts()

        self.assertEqual(self.run_async(run), tidegate.Counts(checks=1000, connections=1))

    def test_a_hundred_threads_share_eight_connections(self) -> None:
        client, user = self.client(connections=8), {"app": "few", "user.id": "threads"}
        start = threading.Barrier(100)

        def each(number: int) -> int:
            start.wait()
            mine = client.check({"app": "many", "user.id": f"thread-{number}"}, cost=number + 1)
            self.assertEqual(mine.remaining, 1000000 - number - 1, "another thread's answer")
            return sum(client.check(user).allowed for _ in range(5))

        with ThreadPoolExecutor(100) as pool:
            self.assertEqual(sum(pool.map(each, range(100))), 50)
        self.assertEqual(self.left("few", "threads"), 0)
        counts = client.counts()
        self.assertEqual((counts.unchecked, counts.checks - counts.denied - 100), (0, 50))
        self.assertLessEqual(counts.connections, 8)

    def test_a_thousand_tasks_share_eight_connections(self) -> None:
        async def run(client: tidegate.AsyncClient) -> tidegate.Counts:
            async def one(number: int) -> bool:
                mine = await client.check({"app": "many", "user.id": f"task-{number}"}, cost=number + 1)
                self.assertEqual(mine.remaining, 1000000 - number - 1, "another task's answer")
                return bool(await client.check({"app": "few", "user.id": "tasks"}))

            self.assertEqual(sum(await asyncio.gather(*map(one, range(1000)))), 50)
            return client.counts()

        counts = self.run_async(run, connections=8)
        self.assertEqual(counts.unchecked, 0)
        self.assertLessEqual(counts.connections, 8)

    def test_all_connections_taken_ends_at_the_deadline(self) -> None:
        self.server.pause()
        try:
            client, others = self.client(connections=2, deadline=0.5), []
            with ThreadPoolExecutor(10) as pool:
                begin = time.monotonic()
                others = list(pool.map(lambda _: client.check(MANY), range(10)))
            self.assertLess(time.monotonic() - begin, 5)
            self.assertEqual([one.checked for one in others], [False] * 10)
            self.assertEqual((client._pool._open, len(client._pool._waiting)), (0, 0))

            async def run(client: tidegate.AsyncClient) -> List[tidegate.Decision]:
                decisions = await asyncio.gather(*(client.check(MANY) for _ in range(10)))
                self.assertEqual(client._pool()._open, 0)
                return decisions

            begin = time.monotonic()
            others = self.run_async(run, connections=2, deadline=0.5)
            self.assertLess(time.monotonic() - begin, 5)
            self.assertEqual([one.checked for one in others], [False] * 10)
        finally:
            self.server.resume()

    def test_a_child_of_a_fork_has_its_own(self) -> None:
        client = self.client()
        client.check(MANY)
        child = os.fork()
        if child == 0:
            # Answers of parent and child would be exchanged on one connection.
            good = all(client.check(MANY, cost=2).limits[0].cost == 2 for _ in range(200))
            os._exit(0 if good and client.counts().connections == 2 else 1)
        good = all(client.check(MANY, cost=3).limits[0].cost == 3 for _ in range(200))
        self.assertEqual((os.waitpid(child, 0)[1], good, client.counts().connections), (0, True, 1))

    def test_one_asynchronous_client_in_two_event_loops(self) -> None:
        client = tidegate.AsyncClient(self.server.url, deadline=PATIENCE)

        async def once() -> bool:
            try:
                return (await client.check(MANY)).checked and (await client.check(MANY)).checked
            finally:
                (pool,) = [pool for loop, pool in client._pools.items() if loop is asyncio.get_running_loop()]
                await pool.close()

        self.assertEqual([asyncio.run(once()), asyncio.run(once())], [True, True])
        self.assertEqual(client.counts().connections, 2)

    def test_closed(self) -> None:
        client = self.client(on_error="open")
        client.close()
        with self.assertRaises(RuntimeError):
            client.check(MANY)


class GoneAndBack(unittest.TestCase):
    def test_killed_under_load_and_back(self) -> None:
        with Server(POLICIES) as server, tidegate.Client(server.url, on_error="open", deadline=PATIENCE) as client:
            stop, decisions = threading.Event(), [0, 0]

            def load() -> None:
                while not stop.is_set():
                    decisions[client.check(MANY).checked] += 1

            threads = [threading.Thread(target=load) for _ in range(8)]
            for thread in threads:
                thread.start()
            try:
                for _ in range(3):
                    before = list(decisions)
                    within("the server decides", lambda: decisions[1] > before[1])
                    server.kill()
                    within("the client decides", lambda: decisions[0] > before[0])
                    server.start()
            finally:
                stop.set()
                for thread in threads:
                    thread.join()
            self.assertTrue(client.check(MANY).checked)
            counts = client.counts()
            self.assertEqual((counts.unchecked, counts.checks), (decisions[0], sum(decisions) + 1))
            self.assertEqual(client._pool._open, len(client._pool._idle), "places for connections are lost")

    def test_a_restart_between_two_calls_costs_no_decision(self) -> None:
        with Server(POLICIES) as server, tidegate.Client(server.url, deadline=PATIENCE) as client:
            for _ in range(3):
                self.assertTrue(client.check(MANY).checked)
                server.kill()
                server.start()
            self.assertEqual((client.check(MANY).checked, client.counts().unchecked), (True, 0))

            async def run() -> None:
                async with tidegate.AsyncClient(server.url, deadline=PATIENCE) as other:
                    for _ in range(3):
                        self.assertTrue((await other.check(MANY)).checked)
                        # Without a turn of the event loop, so that it has not noticed yet.
                        server.kill()
                        server.start()
                    self.assertTrue((await other.check(MANY)).checked)

            asyncio.run(run())

    def test_places_of_work_that_outlives_the_server(self) -> None:
        with Server(POLICIES) as server, tidegate.Client(server.url, deadline=PATIENCE) as client:
            with client.acquire(PLACES) as work:
                server.kill()
            self.assertIsInstance(work.settled, tidegate.Unavailable)
            self.assertEqual(client.counts().unsettled, 1)


class Blocks(WithServer):
    def test_places_come_back_whatever_ends_the_block(self) -> None:
        client = self.client()
        for error in (ValueError, KeyboardInterrupt, SystemExit, GeneratorExit):
            with self.assertRaises(error):
                with client.acquire(PLACES) as work:
                    self.assertEqual(work.decision.remaining, 1)
                    raise error()
            assert isinstance(work.settled, tidegate.Settled)
            self.assertEqual(work.settled.outcome, "failure" if error is ValueError else "ignored")
        self.assertEqual(self.free_places("ann"), 2)

    def test_refused_blocks_do_not_run(self) -> None:
        client = self.client()
        with client.acquire(PLACES), client.acquire(PLACES):
            with self.assertRaises(tidegate.Denied) as raised:
                with client.acquire(PLACES):
                    self.fail("the block runs")
            self.assertEqual((raised.exception.decision.status, raised.exception.retry_after), (503, None))
            begin = time.monotonic()
            with self.assertRaises(tidegate.Denied):
                client.acquire(PLACES, wait=0.3).__enter__()
            self.assertLess(time.monotonic() - begin, 10)
        with client.acquire(PLACES):
            pass

    def test_waiting_for_a_place(self) -> None:
        client, user = self.client(), {"app": "places", "user.id": "wait"}
        with ThreadPoolExecutor(8) as pool:

            def each(_: int) -> bool:
                with client.acquire(user, wait=50):
                    time.sleep(0.02)
                    return True

            self.assertTrue(all(pool.map(each, range(16))))
        self.assertEqual(self.free_places("wait"), 2)

    def test_spending_when_the_block_raises(self) -> None:
        client, user = self.client(), {"app": "tokens", "user.id": "raises"}
        with self.assertRaises(ZeroDivisionError):
            with client.spend(user):
                raise ZeroDivisionError
        self.assertEqual(self.left("tokens", "raises"), 1000)
        with self.assertRaises(ZeroDivisionError):
            with client.spend(user) as work:
                work.settle({"llm.output": 10})
                work.settle({"llm.output": 50})
                raise ZeroDivisionError
        self.assertEqual(self.left("tokens", "raises"), 950)
        with client.spend(user):
            pass
        self.assertEqual(self.left("tokens", "raises"), 150)

    def test_a_settlement_with_a_mistake_is_raised_and_frees_places(self) -> None:
        client = self.client()
        with self.assertRaisesRegex(tidegate.InputError, "llm.outputs.*did you mean llm.output"):
            with client.acquire({"app": "places", "user.id": "mistake"}) as work:
                work.settle({"llm.outputs": 1})
        self.assertEqual(self.free_places("mistake"), 2)
        with self.assertRaisesRegex(tidegate.InputError, "within the block"):
            work.settle({"llm.output": 1})

    def test_places_held_longer(self) -> None:
        with self.client().acquire(PLACES) as work:
            self.assertGreater(work.extend(), 200)
            self.assertGreater(work.extend(), 200)
        self.assertEqual(self.free_places("ann"), 2)

        async def run(client: tidegate.AsyncClient) -> None:
            async with client.acquire(PLACES) as work:
                self.assertGreater(await work.extend(), 200)
                # The block ends in the middle of an extension.
                extending = asyncio.ensure_future(work.extend())
                await asyncio.sleep(0)
            await extending
            self.assertIsInstance(work.settled, tidegate.Settled)

        self.run_async(run)
        self.assertEqual(self.free_places("ann"), 2)


class Cancelled(WithServer):
    def test_a_cancelled_task_gives_places_back(self) -> None:
        async def run(client: tidegate.AsyncClient) -> None:
            user, inside = {"app": "places", "user.id": "cancel"}, asyncio.Event()

            async def hold() -> None:
                async with client.acquire(user):
                    inside.set()
                    await asyncio.sleep(60)

            for _ in range(3):
                inside.clear()
                task = asyncio.ensure_future(hold())
                await inside.wait()
                task.cancel()
                # Once more, while it gives the place back.
                await asyncio.sleep(0)
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task

        self.run_async(run)
        self.assertEqual(self.free_places("cancel"), 2)

    def test_cancelled_at_every_step_of_the_check(self) -> None:
        async def run(client: tidegate.AsyncClient) -> None:
            for turns in range(60):
                user = {"app": "places", "user.id": f"steps-{turns}"}
                task = asyncio.ensure_future(client.acquire(user).__aenter__())
                for _ in range(turns):
                    await asyncio.sleep(0 if turns % 2 else 0.0003)
                    if task.done():
                        break
                if task.done():
                    work = task.result()
                    await work.__aexit__(None, None, None)
                else:
                    task.cancel()
                    with self.assertRaises(asyncio.CancelledError):
                        await task

        self.run_async(run)
        self.assertEqual([self.free_places(f"steps-{turns}") for turns in range(60)], [2] * 60)

    def test_cancelled_before_the_answer(self) -> None:
        async def run(client: tidegate.AsyncClient) -> None:
            self.server.pause()
            try:
                task = asyncio.ensure_future(client.spend({"app": "tokens", "user.id": "late"}).__aenter__())
                await asyncio.sleep(0.2)
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
            finally:
                self.server.resume()

        self.run_async(run)
        self.assertEqual(self.left("tokens", "late"), 1000)

    def test_cancelled_while_delayed(self) -> None:
        async def run(client: tidegate.AsyncClient) -> None:
            user = {"app": "paced", "user.id": "ann"}
            self.assertEqual((await client.check(user)).delay, 0)
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(client.check(user, ticket=True), 0.3)

        self.run_async(run)
        with tidegate.Client(self.server.url, deadline=PATIENCE) as client:
            # Its turn was given back: the next would begin within an hour, not two.
            self.assertLess(client.peek({"app": "paced", "user.id": "ann"}).delay, 3601)


class Doors(unittest.TestCase):
    def test_a_unix_socket(self) -> None:
        folder = subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True).stdout.strip()
        try:
            with Server(POLICIES, listen=f"unix:{folder}/http.sock") as server:
                with tidegate.Client(server.url, deadline=PATIENCE) as client:
                    self.assertTrue(client.check(MANY).checked)

                async def run() -> bool:
                    async with tidegate.AsyncClient(server.url, deadline=PATIENCE) as other:
                        return (await other.check(MANY)).checked

                self.assertTrue(asyncio.run(run()))
            with tidegate.Client(f"unix:{folder}/none.sock") as client:
                self.assertFalse(client.check(MANY).checked)
        finally:
            subprocess.run(["rm", "-r", folder], check=True)

    def test_tls(self) -> None:
        folder = subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True).stdout.strip()
        try:
            make = (
                "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key.pem -out cert.pem"
                " -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1"
            )
            subprocess.run(make.split(), cwd=folder, check=True, capture_output=True)
            files = ["--tls-cert", f"{folder}/cert.pem", "--tls-key", f"{folder}/key.pem"]
            with Server(POLICIES, token="0123456789abcdef", options=files) as server:
                trusted = ssl.create_default_context(cafile=f"{folder}/cert.pem")
                port = server.listen.rpartition(":")[2]
                for host in ("localhost", "127.0.0.1"):
                    url, token = f"https://{host}:{port}", "0123456789abcdef"
                    with tidegate.Client(url, tls=trusted, token=token, deadline=PATIENCE) as client:
                        self.assertTrue(all(client.check(MANY).checked for _ in range(5)))
                        self.assertEqual(client.counts().connections, 1)

                    async def run() -> bool:
                        async with tidegate.AsyncClient(url, tls=trusted, token=token, deadline=PATIENCE) as other:
                            return all([(await other.check(MANY)).checked for _ in range(5)])

                    self.assertTrue(asyncio.run(run()))
                with tidegate.Client(f"https://localhost:{port}", deadline=PATIENCE) as client:
                    self.assertIn("cafile", str(client.check(MANY).error))
                with tidegate.Client(f"http://localhost:{port}", deadline=PATIENCE, on_error="open") as client:
                    with self.assertRaisesRegex(tidegate.InputError, "https://"):
                        client.check(MANY)
        finally:
            subprocess.run(["rm", "-r", folder], check=True)

    def test_a_name_that_is_resolved(self) -> None:
        with Server(POLICIES) as server:
            port = server.listen.rpartition(":")[2]
            with tidegate.Client(f"http://localhost:{port}", deadline=PATIENCE) as client:
                self.assertTrue(client.check(MANY).checked)
        with tidegate.Client("http://no-such-host.invalid", deadline=PATIENCE) as client:
            self.assertIn("no-such-host", str(client.check(MANY).error))


class Mistakes(WithServer):
    """What users get wrong, each told in a way that leads to the right call, and nobody passes for it."""

    def test_set_up(self) -> None:
        for url, told in [
            ("localhost:8080", "http://127.0.0.1:8080"),
            ("127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("http://", "no host"),
            ("http://127.0.0.1:8080/v1/check", "has a path"),
            ("http://127.0.0.1:80800", "Port out of range"),
            ("http://user:secret@host", "token"),
            ("http://a b", "is not one"),
            ("http://host\r\nx: y", "is not one"),
            ("redis://127.0.0.1", "no scheme"),
            ("unix:http.sock", "is no path"),
        ]:
            with self.assertRaisesRegex(tidegate.InputError, told):
                tidegate.Client(url)
        wrong: List[Tuple[Dict[str, Any], str]] = [
            ({"on_error": "allow"}, "'closed' refuses"),
            ({"on_error": None}, "'closed' refuses"),
            ({"deadline": 0}, "seconds above 0"),
            ({"deadline": None}, "seconds above 0"),
            ({"deadline": float("nan")}, "seconds above 0"),
            ({"connections": 0}, "above 0"),
            ({"token": "0123456789abcdef\n"}, "strip"),
            ({"token": "x\r\nhost: y"}, "printable"),
            ({"tls": ssl.create_default_context()}, "https"),
        ]
        for options, told in wrong:
            with self.assertRaisesRegex(tidegate.InputError, told):
                tidegate.Client("http://127.0.0.1:8080", **options)
            with self.assertRaises(tidegate.InputError):
                tidegate.AsyncClient("http://127.0.0.1:8080", **options)

    def test_calls(self) -> None:
        client: Any = self.client(on_error="open")
        for arguments, told in [
            (dict(attributes="ann"), "names and values"),
            (dict(attributes={"user.id": object()}), "`user.id` is <object.*as str"),
            (dict(attributes={"user.id": b"ann"}), "a bytes"),
            (dict(attributes={"user.id": float("nan")}), "`user.id` is nan"),
            (dict(attributes={1: "ann"}), "no text"),
            (dict(attributes={"user.id": None}), "null is not a value"),
            (dict(attributes={"user.id": "a" * 9000}), "9000 bytes"),
            (dict(attributes={f"a{i}": "a" * 8000 for i in range(10)}), "65536"),
            (dict(attributes={f"a{i}": 1 for i in range(65)}), "more than 64"),
            (dict(attributes={"user.id": "\ud800"}), "surrogate|unexpected|invalid|JSON"),
            (dict(attributes=MANY, policies="many"), r"pass \['many'\]"),
            (dict(attributes=MANY, cost="5"), "`cost`"),
            (dict(attributes=MANY, cost=2**61), "`cost`"),
            (dict(attributes=MANY, wait=-1), "0 or more"),
            (dict(attributes=MANY, priority="\r\n"), "priority"),
        ]:
            with self.assertRaisesRegex(tidegate.InputError, told, msg=str(arguments)[:80]):
                client.check(**arguments)
        with self.assertRaises(TypeError):
            client.check(user_id="ann")
        with self.assertRaises(TypeError):
            client.check(MANY, 5)
        with self.assertRaisesRegex(tidegate.InputError, "ticket=True"):
            client.settle(client.check(MANY), cost=3)
        with self.assertRaisesRegex(tidegate.InputError, "names and values"):
            client.settle("ticket", "llm.output")
        with self.assertRaisesRegex(tidegate.InputError, "pass the decision"):
            client.settle(None)
        # Nothing was charged by all this but the one check.
        self.assertEqual(client.counts().checks, 1)

    def test_a_block_without_with(self) -> None:
        work = self.client().spend(MANY)
        with self.assertRaisesRegex(TypeError, "with client.spend"):
            bool(work)
        with self.assertRaisesRegex(tidegate.InputError, "with client.spend"):
            work.decision.remaining
        with work:
            with self.assertRaisesRegex(tidegate.InputError, "begun before"):
                work.__enter__()
            with self.assertRaisesRegex(tidegate.InputError, "llm.output"):
                work.settle(400)  # type: ignore[arg-type]

    def test_a_decision_in_a_condition(self) -> None:
        client, user = self.client(), {"app": "few", "user.id": "condition"}
        self.assertTrue(client.check(user, cost=50))
        self.assertFalse(client.check(user))

    def test_an_attribute_by_a_wrong_name_is_counted(self) -> None:
        client = self.client()
        decision = client.check({"app": "few", "user_id": "ann"})
        self.assertEqual((decision.allowed, decision.limited, client.counts().unlimited), (True, False, 1))
        # A rate limits, but no policy has places.
        with client.acquire(MANY) as work:
            with self.assertRaisesRegex(tidegate.InputError, "no places"):
                work.extend()
        self.assertEqual(client.counts().unlimited, 2)
        with client.acquire(PLACES):
            self.assertEqual(client.counts().unlimited, 2)


class Interrupted(WithServer):
    def test_a_late_answer_is_not_the_next(self) -> None:
        client, rude = self.client(), {"app": "few", "user.id": "rude"}
        self.assertTrue(client.check(MANY).checked)

        class Alarm(BaseException):
            pass

        def ring(*_: object) -> None:
            raise Alarm

        before = signal.signal(signal.SIGALRM, ring)
        try:
            for _ in range(3):
                self.server.pause()
                signal.setitimer(signal.ITIMER_REAL, 0.1)
                with self.assertRaises(Alarm):
                    client.check(rude)
                with ThreadPoolExecutor(1) as pool:
                    asked = pool.submit(client.check, MANY)
                    # It is sent before the late answer comes.
                    time.sleep(0.1)
                    self.server.resume()
                    decision = asked.result()
                self.assertEqual((decision.checked, decision.policy), (True, "many"))
        finally:
            self.server.resume()
            signal.signal(signal.SIGALRM, before)

    def test_a_fork_while_other_threads_ask(self) -> None:
        client, stop = self.client(connections=4), threading.Event()

        def load() -> None:
            while not stop.is_set():
                client.check(MANY)

        threads = [threading.Thread(target=load) for _ in range(8)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(20):
                child = os.fork()
                if child == 0:
                    os._exit(0 if client.check(MANY, cost=7).limits[0].cost == 7 else 1)
                within("the child ends", lambda: os.waitpid(child, os.WNOHANG) == (child, 0))
        finally:
            stop.set()
            for thread in threads:
                thread.join()

    def test_a_fork_while_another_thread_has_the_locks(self) -> None:
        client = self.client()
        client.check(MANY)
        with client._tally._lock, client._pool._lock:
            child = os.fork()
            if child == 0:
                os._exit(0 if client.check(MANY, cost=7).limits[0].cost == 7 else 1)
        try:
            within("the child ends", lambda: os.waitpid(child, os.WNOHANG) == (child, 0))
        except AssertionError:
            os.kill(child, signal.SIGKILL)
            raise

    def test_errors_that_a_queue_pickles(self) -> None:
        client = self.client()
        with self.assertRaises(tidegate.Denied) as raised:
            client.spend({"app": "few", "user.id": "pickle"}, cost=51).__enter__()
        again = pickle.loads(pickle.dumps(raised.exception))
        self.assertEqual((str(again), again.decision), (str(raised.exception), raised.exception.decision))
        error = pickle.loads(pickle.dumps(tidegate.Unavailable("gone", 503, 2.0)))
        self.assertEqual((str(error), error.status, error.retry_after), ("gone", 503, 2.0))

    def test_ipv6(self) -> None:
        with socket.socket(socket.AF_INET6) as listener:
            if listener.connect_ex(("::1", 1)) != errno.ECONNREFUSED:
                self.skipTest("this machine has no IPv6 on loopback")
        with Server(POLICIES, listen=f"[::1]:{free_port()}") as server:
            with tidegate.Client(f"http://{server.listen}", deadline=PATIENCE) as client:
                self.assertTrue(client.check(MANY).checked)
