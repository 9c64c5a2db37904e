"""Kept connections of one event loop, by the rules of `_pool`."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any, Callable, Coroutine, Deque, List, Optional, Set, Tuple, TypeVar

from ._pool import MOST_IDLE, Time, readable, unreachable
from ._wire import Address, Answer, Reader, Request
from .errors import Unavailable

T = TypeVar("T")


class _Connection(asyncio.Protocol):
    """One connection, with one exchange at a time."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.usable = True
        self._reader: Optional[Reader] = None
        self._answer: Optional["asyncio.Future[Optional[Answer]]"] = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self._reader is None:
            # Nobody asked.
            self.close()
            return
        try:
            answer = self._reader.feed(data)
        except Unavailable as error:
            self._fail(error)
            return
        if answer is not None:
            self.usable = self.usable and answer.keep
            self._told(answer)

    def eof_received(self) -> bool:
        self._ended()
        return False

    def connection_lost(self, error: Optional[Exception]) -> None:
        self._ended()

    def _ended(self) -> None:
        self.usable = False
        if self._reader is None:
            return
        if not self._reader.began:
            self._told(None)
            return
        try:
            self._told(self._reader.end())
        except Unavailable as error:
            self._fail(error)

    def _told(self, answer: Optional[Answer]) -> None:
        self._reader = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)

    def _fail(self, error: Unavailable) -> None:
        self._reader = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
        self.close()

    def ask(self, request: bytes) -> "asyncio.Future[Optional[Answer]]":
        """Sends a request. The result is `None` if the server closes the connection without a byte of an answer."""
        self._reader, self._answer = Reader(), asyncio.get_running_loop().create_future()
        if self.transport.is_closing():
            self._ended()
        else:
            self.transport.write(request)
        return self._answer

    def close(self) -> None:
        self.usable, self._reader, self._answer = False, None, None
        if self.transport is not None:
            # Not `close`, which waits until what was written is sent, and over TLS for the other side's word.
            self.transport.abort()

    def fresh(self) -> bool:
        if not self.usable or self.transport.is_closing():
            return False
        socket = self.transport.get_extra_info("socket")
        return socket is None or not readable(socket.fileno())


class AsyncPool:
    """At most `most` connections of one event loop; a task that finds none free waits, within its deadline."""

    def __init__(
        self, to: Address, request: Request, most: int, deadline: float, connected: Callable[[], None]
    ) -> None:
        self._to, self._request, self._most, self._deadline = to, request, most, deadline
        self._connected = connected
        self._idle: List[Tuple[_Connection, float]] = []
        self._open = 0
        self._waiting: Deque["asyncio.Future[Optional[_Connection]]"] = deque()
        self._closed = False
        #: Exchanges go on when their caller is cancelled: what they charge is undone.
        self._tasks: Set["asyncio.Task[Any]"] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Starts what must end, whatever happens to its caller."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        # Its caller may be gone: nobody else reads the error.
        if not task.cancelled():
            task.exception()

    async def close(self) -> None:
        """Waits for what is under way, each within its deadline, then closes."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))
        self._closed = True
        while self._idle:
            self._idle.pop()[0].close()
            self._open -= 1

    async def ask(self, path: str, body: bytes, repeatable: bool) -> Answer:
        """Asks as `Pool.ask` does. To be run as a task of its own, by `start`."""
        time_left, request = Time(self._to, self._deadline), self._request.write(path, body)
        connection, kept = await self._take(time_left)
        answer = await self._exchange(connection, request, time_left)
        if answer is None and kept and repeatable:
            self._open += 1
            answer = await self._exchange(await self._connect(time_left), request, time_left)
        if answer is None:
            raise Unavailable("the server closed the connection without an answer")
        return answer

    async def _take(self, time_left: Time) -> Tuple[_Connection, bool]:
        if self._closed:
            raise RuntimeError("this Tidegate client is closed")
        while self._idle:
            connection, since = self._idle.pop()
            if time.monotonic() - since < MOST_IDLE and connection.fresh():
                return connection, True
            self._open -= 1
            connection.close()
        if self._open < self._most:
            self._open += 1
        else:
            handed = await self._wait(time_left)
            if handed is not None:
                if handed.fresh():
                    return handed, True
                handed.close()
        return await self._connect(time_left), False

    async def _wait(self, time_left: Time) -> Optional[_Connection]:
        """Waits for a place, in the order of the callers. Returns the connection that has it, if there is one."""
        what = f"waiting for one of its {self._most} connections (`connections`)"
        turn: "asyncio.Future[Optional[_Connection]]" = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            done, _ = await asyncio.wait({turn}, timeout=time_left.left(what))
            if not done:
                raise time_left.over(what)
        except BaseException:
            if turn.done():
                self._hand_on(turn.result())
            else:
                turn.cancel()
            raise
        return turn.result()

    def _hand_on(self, connection: Optional[_Connection]) -> None:
        """Gives a place, with its connection or without, to the next who waits."""
        if self._closed or self._open > self._most:
            self._open -= 1
            if connection is not None:
                connection.close()
            return
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(connection)
                return
        if connection is None:
            self._open -= 1
        else:
            self._idle.append((connection, time.monotonic()))

    async def _connect(self, time_left: Time) -> _Connection:
        try:
            return await self._connection(time_left)
        except BaseException:
            self._hand_on(None)
            raise

    async def _connection(self, time_left: Time) -> _Connection:
        loop = asyncio.get_running_loop()
        opening: Coroutine[Any, Any, Tuple[Any, _Connection]]
        if self._to.path is not None:
            opening = loop.create_unix_connection(_Connection, self._to.path)
        else:
            tls, host = self._to.tls, self._to.host
            opening = loop.create_connection(
                _Connection, host, self._to.port, ssl=tls, server_hostname=host if tls else None
            )
        task = loop.create_task(opening)
        try:
            done, _ = await asyncio.wait({task}, timeout=time_left.left("connecting"))
            if not done:
                raise time_left.over("connecting")
            _, connection = task.result()
        except (OSError, UnicodeError) as error:
            raise unreachable(self._to, error) from None
        finally:
            # One that comes up too late is closed.
            if not task.done():
                task.add_done_callback(_close_late)
                task.cancel()
        self._connected()
        return connection

    async def _exchange(self, connection: _Connection, request: bytes, time_left: Time) -> Optional[Answer]:
        try:
            asked = connection.ask(request)
            done, _ = await asyncio.wait({asked}, timeout=time_left.left("waiting for its answer"))
            if not done:
                raise time_left.over("waiting for its answer")
            answer = asked.result()
        except BaseException:
            connection.close()
            self._drop(connection)
            raise
        if answer is None or not connection.usable:
            self._drop(connection)
        else:
            self._give_back(connection)
        return answer

    def _give_back(self, connection: _Connection) -> None:
        self._hand_on(connection)
        if self._idle and time.monotonic() - self._idle[0][1] > MOST_IDLE:
            self._idle.pop(0)[0].close()
            self._open -= 1

    def _drop(self, connection: _Connection) -> None:
        connection.close()
        self._hand_on(None)


def _close_late(task: "asyncio.Task[Tuple[Any, _Connection]]") -> None:
    if not task.cancelled() and task.exception() is None:
        task.result()[1].close()
