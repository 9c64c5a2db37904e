"""The client for asyncio."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
import weakref
from types import TracebackType
from typing import Any, Iterable, Mapping, Optional, Type, Union

from . import _calls
from ._aio_pool import AsyncPool
from ._calls import Spent, Tally, Value, Waits
from ._fork import Forks
from ._wire import Answer, Request, address
from .answers import Counts, Decision, Extended, Settled
from .client import Fields, Told, check_bounds
from .errors import AccessError, Denied, InputError, TidegateError, Unavailable


class AsyncClient(Forks):
    """Asks a Tidegate server from asyncio. It has the methods and settings of `Client`, with `connections` for each
    event loop.

    A call that is cancelled charges nothing that could be given back: its exchange with the server ends in the
    background, and a decision with a ticket is undone. So close the client before the event loop ends:
    `async with AsyncClient(...) as client:`, or `await client.aclose()`.
    """

    def __init__(
        self,
        url: str,
        *,
        token: Optional[str] = None,
        on_error: str = "closed",
        deadline: float = 1.0,
        connections: int = 64,
        tls: Optional[ssl.SSLContext] = None,
    ) -> None:
        to = address(url, tls)
        check_bounds(deadline, connections)
        self._tally = Tally(on_error)
        request, connected = Request(to, token), self._tally.connected

        def make() -> AsyncPool:
            return AsyncPool(to, request, connections, deadline, connected)

        self._make = make
        self._closed = False
        super().__init__()

    def forget(self) -> None:
        """Begins anew in the child of a fork."""
        # Connections belong to their event loop.
        self._pools: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncPool]" = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Ends what is under way in this event loop, and closes the connections. Later calls raise `RuntimeError`."""
        loop = asyncio.get_running_loop()
        with self._lock:
            pool = self._pools.get(loop)
        if pool is not None:
            await pool.close()
        self._closed = True
        with self._lock:
            self._pools.pop(loop, None)

    def counts(self) -> Counts:
        """Returns what was counted so far."""
        return self._tally.counts()

    def _pool(self) -> AsyncPool:
        loop = asyncio.get_running_loop()
        with self._lock:
            pool = self._pools.get(loop)
            if pool is None:
                if self._closed:
                    raise RuntimeError("this Tidegate client is closed")
                pool = self._pools[loop] = self._make()
        return pool

    async def check(
        self,
        attributes: Mapping[str, Value],
        *,
        cost: Optional[int] = None,
        priority: Optional[str] = None,
        policies: Optional[Iterable[str]] = None,
        ticket: Optional[bool] = None,
        wait: float = 0.0,
    ) -> Decision:
        """Like `Client.check`."""
        body = _calls.check_body(attributes, cost, priority, policies, ticket)
        waits = Waits(wait, time.monotonic())
        while True:
            answer = await self._decide(body)
            pause = waits.pause(answer, time.monotonic())
            if pause is None:
                break
            await asyncio.sleep(pause)
        if isinstance(answer, Unavailable):
            return self._tally.undecided(answer)
        if answer.delay:
            try:
                await asyncio.sleep(answer.delay)
            except BaseException:
                self._undo(answer)
                raise
        return self._tally.decided(answer)

    async def _decide(self, body: bytes) -> Union[Decision, Unavailable]:
        task = self._pool().start(self._decided(body))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._undo_task)
            raise

    async def _decided(self, body: bytes) -> Union[Decision, Unavailable]:
        try:
            return _calls.decided(await self._pool().ask(_calls.CHECK, body, repeatable=False))
        except Unavailable as error:
            return error

    def _undo_task(self, task: "asyncio.Task[Union[Decision, Unavailable]]") -> None:
        if not task.cancelled() and task.exception() is None:
            self._undo(task.result())

    def _undo(self, answer: Union[Decision, Unavailable]) -> None:
        if isinstance(answer, Decision) and answer.ticket is not None:
            self._pool().start(self._settle_late(answer.ticket, {"outcome": "undone"}))

    async def peek(
        self,
        attributes: Mapping[str, Value],
        *,
        cost: Optional[int] = None,
        priority: Optional[str] = None,
        policies: Optional[Iterable[str]] = None,
    ) -> Decision:
        """Like `Client.peek`."""
        body = _calls.check_body(attributes, cost, priority, policies, None)
        return _calls.decided(await self._ask(_calls.PEEK, body))

    async def settle(
        self,
        ticket: Union[Decision, str],
        attributes: Optional[Mapping[str, Spent]] = None,
        *,
        cost: Optional[int] = None,
        status: Optional[int] = None,
        outcome: Optional[str] = None,
        refund: Union[int, str, None] = None,
    ) -> Settled:
        """Like `Client.settle`. It is sent also if the caller is cancelled."""
        fields = _calls.settle_body(_calls.a_ticket(ticket), attributes, cost, status, outcome, refund)
        return _calls.settled(await self._ask(_calls.SETTLE, fields))

    async def extend(self, ticket: Union[Decision, str]) -> Extended:
        """Like `Client.extend`."""
        body = _calls.encoded({"ticket": _calls.a_ticket(ticket)})
        return _calls.extended(await self._ask(_calls.EXTEND, body))

    async def _ask(self, path: str, body: bytes) -> Answer:
        pool = self._pool()
        return await asyncio.shield(pool.start(pool.ask(path, body, path in _calls.REPEATABLE)))

    async def _settle_late(self, ticket: Optional[str], fields: Fields) -> Union[Settled, TidegateError, None]:
        if ticket is None:
            return None
        try:
            return await self.settle(ticket, **fields)  # type: ignore[arg-type]
        except TidegateError as error:
            self._tally.unsettled(error)
            return error

    def spend(
        self,
        attributes: Mapping[str, Value],
        *,
        cost: Optional[int] = None,
        priority: Optional[str] = None,
        policies: Optional[Iterable[str]] = None,
        wait: float = 0.0,
    ) -> "AsyncWork":
        """Like `Client.spend`, for `async with`."""
        body: Fields = dict(cost=cost, priority=priority, policies=policies, ticket=True, wait=wait)
        return AsyncWork(self, attributes, body, holds="units")

    def acquire(
        self,
        attributes: Mapping[str, Value],
        *,
        priority: Optional[str] = None,
        policies: Optional[Iterable[str]] = None,
        wait: float = 0.0,
    ) -> "AsyncWork":
        """Like `Client.acquire`, for `async with`. Places are given back also if the task is cancelled."""
        return AsyncWork(self, attributes, dict(priority=priority, policies=policies, wait=wait), holds="places")


class AsyncWork(Told):
    """Like `Work`, for `async with`."""

    def __init__(self, client: AsyncClient, attributes: Mapping[str, Value], body: Fields, holds: str) -> None:
        super().__init__(undo=holds == "units")
        self._holds = holds
        self._client, self._attributes, self._body = client, attributes, body
        self._decision: Optional[Decision] = None
        self._ticket: Optional[str] = None
        self._extending: Optional["asyncio.Task[Any]"] = None
        self.settled: Union[Settled, TidegateError, None] = None

    @property
    def decision(self) -> Decision:
        if self._decision is None:
            raise InputError("nothing is decided yet: write `async with client.spend(...) as work:`")
        return self._decision

    def __bool__(self) -> bool:
        raise TypeError("nothing is decided yet: write `async with client.spend(...) as work:`")

    async def __aenter__(self) -> "AsyncWork":
        if self._decision is not None:
            raise InputError("this work was begun before: call `spend` or `acquire` for each block")
        decision = await self._client.check(self._attributes, **self._body)  # type: ignore[arg-type]
        self._decision, self._ticket = decision, decision.ticket
        if not decision.allowed:
            raise Denied(decision)
        if self._holds == "places":
            self._client._tally.placeless(decision)
        return self

    async def extend(self) -> float:
        """Like `Work.extend`."""
        if self._ended or self._ticket is None:
            raise InputError("this work holds no places")
        if self._extending is None:
            self._extending = self._client._pool().start(self._extend(self._ticket))
        lapses_after: float = await asyncio.shield(self._extending)
        return lapses_after

    async def _extend(self, ticket: str) -> float:
        try:
            extended = await self._client.extend(ticket)
            self._ticket = extended.ticket
            return extended.lapses_after
        finally:
            self._extending = None

    async def __aexit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        told = self._end(error)
        if self._ticket is None:
            return
        # In a task of its own, which goes on if this one is cancelled again.
        await asyncio.shield(self._client._pool().start(self._finish(told, error)))
        if error is None and isinstance(self.settled, (InputError, AccessError)):
            raise self.settled

    async def _finish(self, told: Fields, error: Optional[BaseException]) -> None:
        if self._extending is not None:
            # The ticket that it answers is the one to settle.
            await asyncio.wait({self._extending})
        self._ticket, ticket = None, self._ticket
        self.settled = await self._client._settle_late(ticket, told)
        if isinstance(self.settled, (InputError, AccessError)):
            await self._client._settle_late(ticket, {"outcome": _calls.an_outcome(error, False)})
