"""The client for threads."""

from __future__ import annotations

import math
import ssl
import threading
import time
from types import TracebackType
from typing import Dict, Iterable, Mapping, Optional, Type, Union

from . import _calls
from ._calls import Spent, Tally, Value, Waits
from ._pool import Pool
from ._wire import Answer, Request, address
from .answers import Counts, Decision, Extended, Settled
from .errors import AccessError, Denied, InputError, TidegateError, Unavailable

Fields = Dict[str, object]


class Client:
    """Asks a Tidegate server. Threads may share it, and should: it keeps connections. Make one for each process.

    `url` is `http://HOST:PORT`, `https://HOST:PORT` or `unix:/PATH`.

    `on_error` decides checks while the server cannot be asked: `closed` refuses them, `open` lets them pass
    *unlimited*. Such decisions have `checked=False`, and `counts().unchecked` counts them. Mistakes in a call and
    tokens that are refused raise an error in any case.

    `deadline` is the most seconds that one exchange with the server takes: resolving the name, connecting, TLS, the
    request and its answer. `connections` is the most at once; further threads wait within their deadline. `token` is
    sent if the server wants one. `tls` is for `https`: `ssl.create_default_context(cafile="ca.pem")`.
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
        self._pool = Pool(to, Request(to, token), connections, deadline, self._tally.connected)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections. Calls that are under way end; later ones raise `RuntimeError`."""
        self._pool.close()

    def counts(self) -> Counts:
        """Returns what was counted so far."""
        return self._tally.counts()

    def check(
        self,
        attributes: Mapping[str, Value],
        *,
        cost: Optional[int] = None,
        priority: Optional[str] = None,
        policies: Optional[Iterable[str]] = None,
        ticket: Optional[bool] = None,
        wait: float = 0.0,
    ) -> Decision:
        """Decides whether a request may pass, and charges it if so.

        `wait`: a refusal is waited out and tried again if it can pass within so many seconds. A policy with `max_wait`
        may delay the request in any case: this returns when it may begin.

        # Errors
        `InputError` and `AccessError`. A server that cannot be asked is no error: see `on_error`.
        """
        body = _calls.check_body(attributes, cost, priority, policies, ticket)
        waits = Waits(wait, time.monotonic())
        while True:
            answer = self._decide(body)
            pause = waits.pause(answer, time.monotonic())
            if pause is None:
                break
            time.sleep(pause)
        if isinstance(answer, Unavailable):
            return self._tally.undecided(answer)
        if answer.delay:
            try:
                time.sleep(answer.delay)
            except BaseException:
                self._settle_late(answer.ticket, {"outcome": "undone"})
                raise
        return self._tally.decided(answer)

    def _decide(self, body: bytes) -> Union[Decision, Unavailable]:
        try:
            return _calls.decided(self._pool.ask(_calls.CHECK, body, repeatable=False))
        except Unavailable as error:
            return error

    def peek(
        self,
        attributes: Mapping[str, Value],
        *,
        cost: Optional[int] = None,
        priority: Optional[str] = None,
        policies: Optional[Iterable[str]] = None,
    ) -> Decision:
        """Decides like `check`, but charges nothing.

        # Errors
        As of `check`, and `Unavailable`.
        """
        return _calls.decided(self._ask(_calls.PEEK, _calls.check_body(attributes, cost, priority, policies, None)))

    def settle(
        self,
        ticket: Union[Decision, str],
        attributes: Optional[Mapping[str, Spent]] = None,
        *,
        cost: Optional[int] = None,
        status: Optional[int] = None,
        outcome: Optional[str] = None,
        refund: Union[int, str, None] = None,
    ) -> Settled:
        """Tells what the work of a decision really spent, how it ended, or both.

        # Errors
        `InputError`, `AccessError`, `TicketError`; `Unavailable`: try again.
        """
        fields = _calls.settle_body(_calls.a_ticket(ticket), attributes, cost, status, outcome, refund)
        return _calls.settled(self._ask(_calls.SETTLE, fields))

    def extend(self, ticket: Union[Decision, str]) -> Extended:
        """Holds the places of a decision for another `ttl` from now. Use the new ticket from then on.

        # Errors
        `TicketError`: places have lapsed, or an earlier try worked. `Unavailable`: try again.
        """
        return _calls.extended(self._ask(_calls.EXTEND, _calls.encoded({"ticket": _calls.a_ticket(ticket)})))

    def _ask(self, path: str, body: bytes) -> Answer:
        return self._pool.ask(path, body, path in _calls.REPEATABLE)

    def _settle_late(self, ticket: Optional[str], fields: Fields) -> Union[Settled, TidegateError, None]:
        """Settles where no error may replace what the caller's block did."""
        if ticket is None:
            return None
        try:
            return self.settle(ticket, **fields)  # type: ignore[arg-type]
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
    ) -> "Work":
        """A check around a `with` block, which tells by `Work.settle` what it spent. `Denied` is raised at its begin.

        At its end what was told is sent. If nothing was told, the estimate stands; if the block raised before anything
        was told, the whole charge is undone.
        """
        body: Fields = dict(cost=cost, priority=priority, policies=policies, ticket=True, wait=wait)
        return Work(self, attributes, body, holds="units")

    def acquire(
        self,
        attributes: Mapping[str, Value],
        *,
        priority: Optional[str] = None,
        policies: Optional[Iterable[str]] = None,
        wait: float = 0.0,
    ) -> "Work":
        """Holds places (of policies with `concurrency` or `adaptive`) during a `with` block. `Denied` is raised at its
        begin.

        They are given back whatever ends the block, with the outcome `success`, `failure` if it raised, or `ignored` if
        it was interrupted; `Work.settle` tells another one.
        """
        return Work(self, attributes, dict(priority=priority, policies=policies, wait=wait), holds="places")



class Told:
    """What a block has told about its work."""

    def __init__(self, undo: bool) -> None:
        self._undo = undo
        self._lock = threading.Lock()
        self._told: Fields = {}
        self._ended = False

    def settle(
        self,
        attributes: Optional[Mapping[str, Spent]] = None,
        *,
        cost: Optional[int] = None,
        status: Optional[int] = None,
        outcome: Optional[str] = None,
    ) -> None:
        """Tells what was spent so far, how the work ended, or both. Nothing is sent before the block ends: the last
        word for each value counts.
        """
        new: Fields = {name: value for name, value in (("cost", cost), ("outcome", outcome)) if value is not None}
        if attributes is not None and not isinstance(attributes, Mapping):
            raise InputError(f"settle({attributes!r:.80}): pass names and values, as {{'llm.output': 400}}, or cost=400")
        with self._lock:
            if self._ended:
                raise InputError("this work has ended, and was settled: tell it within the block")
            if attributes is not None:
                known = self._told.get("attributes")
                new["attributes"] = {**(known if isinstance(known, dict) else {}), **attributes}
            if status is not None:
                new["status"] = status
            if status is not None or outcome is not None:
                self._told.pop("status", None)
                self._told.pop("outcome", None)
            self._told.update(new)

    def told_outcome(self) -> bool:
        """Whether the block has told how the work ended."""
        with self._lock:
            return self._ended or "status" in self._told or "outcome" in self._told

    def _end(self, error: Optional[BaseException]) -> Fields:
        """Returns what is sent."""
        with self._lock:
            self._ended = True
            told = dict(self._told)
        if "status" not in told and "outcome" not in told:
            # A block that told what it spent has not undone it.
            told["outcome"] = _calls.an_outcome(error, self._undo and not told)
        return told


class Work(Told):
    """Work that a `with` block does under a decision, which is given back or settled at its end."""

    def __init__(self, client: Client, attributes: Mapping[str, Value], body: Fields, holds: str) -> None:
        super().__init__(undo=holds == "units")
        self._holds = holds
        self._client, self._attributes, self._body = client, attributes, body
        self._decision: Optional[Decision] = None
        self._ticket: Optional[str] = None
        #: After the block: what was settled, or why it was not.
        self.settled: Union[Settled, TidegateError, None] = None

    @property
    def decision(self) -> Decision:
        if self._decision is None:
            raise InputError("nothing is decided yet: write `with client.spend(...) as work:`")
        return self._decision

    def __bool__(self) -> bool:
        raise TypeError("nothing is decided yet: write `with client.spend(...) as work:`")

    def __enter__(self) -> "Work":
        if self._decision is not None:
            raise InputError("this work was begun before: call `spend` or `acquire` for each block")
        decision = self._client.check(self._attributes, **self._body)  # type: ignore[arg-type]
        self._decision, self._ticket = decision, decision.ticket
        if not decision.allowed:
            raise Denied(decision)
        if self._holds == "places":
            self._client._tally.placeless(decision)
        return self

    def extend(self) -> float:
        """Holds the places for another `ttl`. Call it each third of the `ttl`, from any thread. Returns the seconds
        until the first place lapses.

        # Errors
        `TicketError`: a place has lapsed, and others may have it. `Unavailable`: try again.
        """
        with self._lock:
            if self._ended or self._ticket is None:
                raise InputError("this work holds no places")
            extended = self._client.extend(self._ticket)
            self._ticket = extended.ticket
        return extended.lapses_after

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        told = self._end(error)
        self.settled = self._client._settle_late(self._ticket, told)
        self._ticket, ticket = None, self._ticket
        if isinstance(self.settled, (InputError, AccessError)):
            # What was told has a mistake; at least places come back.
            self._client._settle_late(ticket, {"outcome": _calls.an_outcome(error, False)})
            if error is None:
                raise self.settled


def check_bounds(deadline: float, connections: int) -> None:
    """Refuses bounds that would be none."""
    if isinstance(deadline, bool) or not isinstance(deadline, (int, float)) or not 0 < deadline < math.inf:
        raise InputError(f"`deadline` is {deadline!r}: pass seconds above 0, as 0.5")
    if isinstance(connections, bool) or not isinstance(connections, int) or connections < 1:
        raise InputError(f"`connections` is {connections!r}: pass a whole number above 0")
