"""What is asked, as bytes, and what the answers mean: the same for both clients."""

from __future__ import annotations

import json
import logging
import math
import random
import threading
import time
from dataclasses import replace
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple, Union

from ._fork import Forks
from ._wire import Answer
from .answers import Charge, Counts, Decision, Extended, Limit, Settled
from .errors import AccessError, InputError, TicketError, TidegateError, Unavailable

#: An attribute of a request.
Value = Union[str, int, float, bool]
#: A value of a settlement; `None`: not known.
Spent = Union[int, str, None]

CHECK, PEEK, SETTLE, EXTEND = "/v1/check", "/v1/peek", "/v1/settle", "/v1/extend"

#: Asking again cannot charge twice: a peek charges nothing, and a ticket is settled once. A check could be charged
#: twice, and an extension has used up its ticket.
REPEATABLE = (PEEK, SETTLE)

_INPUT = (400, 404, 405, 413, 415, 422, 431)
_FOR_CALLERS = ("retry-after", "ratelimit", "ratelimit-policy", "access-control-expose-headers")

log = logging.getLogger("tidegate")


def check_body(
    attributes: Mapping[str, Value],
    cost: Optional[int],
    priority: Optional[str],
    policies: Optional[Iterable[str]],
    ticket: Optional[bool],
) -> bytes:
    """Returns the body of a check, after the mistakes that JSON would hide."""
    if not isinstance(attributes, Mapping):
        raise InputError(f"`attributes` are {attributes!r:.80}: pass names and values, as {{'user.id': 'ann'}}")
    body: Dict[str, Any] = {"attributes": {_name(name): value for name, value in attributes.items()}}
    if cost is not None:
        body["cost"] = cost
    if priority is not None:
        body["priority"] = priority
    if policies is not None:
        if isinstance(policies, str):
            raise InputError(f"`policies` is a list of names: pass [{policies!r}]")
        body["policies"] = list(policies)
    if ticket is not None:
        body["ticket"] = ticket
    return encoded(body)


def settle_body(
    ticket: Optional[str],
    attributes: Optional[Mapping[str, Spent]],
    cost: Optional[int],
    status: Optional[int],
    outcome: Optional[str],
    refund: Union[int, str, None],
) -> bytes:
    """Returns the body of a settlement."""
    fields = dict(attributes=attributes, cost=cost, status=status, outcome=outcome, refund=refund)
    body: Dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
    if attributes is not None:
        if not isinstance(attributes, Mapping):
            raise InputError(f"`attributes` are {attributes!r:.80}: pass names and values, as {{'llm.output': 400}}")
        body["attributes"] = {_name(name): value for name, value in attributes.items()}
    return encoded({"ticket": a_ticket(ticket), **body})


def a_ticket(ticket: object) -> str:
    """Returns the ticket, or that of a decision."""
    if isinstance(ticket, Decision):
        if ticket.ticket is None:
            why = ticket.ticket_error or "no policy expects to be settled; pass `ticket=True` to the check"
            raise InputError(f"this decision has no ticket: {why}")
        return ticket.ticket
    if not isinstance(ticket, str):
        raise InputError(f"the ticket is {ticket!r:.80}: pass the decision of a check, or its `ticket`")
    return ticket


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise InputError(f"the attribute name {name!r:.80} is no text: write it as 'user.id'")
    return name


def encoded(body: Dict[str, Any]) -> bytes:
    """Returns JSON in ASCII: whatever a value contains, it cannot leave its quotes."""
    try:
        return json.dumps(body, allow_nan=False, separators=(",", ":")).encode("ascii")
    except (TypeError, ValueError, RecursionError):
        for name, value in {**body, **body.get("attributes", {})}.items():
            number = isinstance(value, float) and not math.isfinite(value)
            if number or not isinstance(value, (str, int, float, list, dict, type(None))):
                raise InputError(
                    f"`{name:.256}` is {value!r:.80}, a {type(value).__name__}: pass text, a number or a boolean, "
                    "as str(value)"
                ) from None
        raise InputError("a value cannot be written as JSON: pass text, numbers or booleans") from None


def _fields(answer: Answer) -> Dict[str, Any]:
    try:
        body = json.loads(answer.body, parse_constant=lambda _: None) if answer.body else {}
    except (ValueError, RecursionError):
        body = {}
    return body if isinstance(body, dict) else {}


def failure(answer: Answer, body: Dict[str, Any]) -> TidegateError:
    """Returns the error that an answer without a decision is."""
    status, detail = answer.status, body.get("detail")
    if not isinstance(detail, str):
        start = answer.body[:120].decode("utf-8", "replace")
        detail = f"an answer {status} without a reason ({start!r}): is there a Tidegate at this address?"
    if status == 401 or status == 403:
        return AccessError(f"{detail} (answer {status})", status)
    if status in (409, 410, 421):
        return TicketError(detail, status)
    if status in _INPUT:
        return InputError(detail, status)
    return Unavailable(detail, status, _seconds(answer.headers.get("retry-after")))


def _seconds(text: Optional[str]) -> Optional[float]:
    return float(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else None


class _Typed:
    """Reads fields whose type must be right where they are there; unknown ones are left."""

    def __init__(self, body: Dict[str, Any]) -> None:
        self._body = body

    def get(self, name: str, *kinds: type) -> Any:
        value = self._body.get(name)
        # A boolean is an integer to Python, but not in JSON.
        if value is None or (isinstance(value, kinds) and isinstance(value, bool) == (bool in kinds)):
            return value
        raise Unavailable(f"the server's answer has a `{name}` of {value!r:.80}: is it a Tidegate?")

    def text(self, name: str) -> Optional[str]:
        value: Optional[str] = self.get(name, str)
        return value

    def number(self, name: str) -> Optional[int]:
        value: Optional[int] = self.get(name, int)
        return value

    def seconds(self, name: str) -> Optional[float]:
        value = self.get(name, int, float)
        return None if value is None else value / 1000

    def names(self, name: str) -> Tuple[str, ...]:
        return tuple(one for one in self.get(name, list) or [] if isinstance(one, str))

    def parts(self, name: str) -> List["_Typed"]:
        return [_Typed(one) for one in self.get(name, list) or [] if isinstance(one, dict)]


def decided(answer: Answer) -> Decision:
    """Returns the decision that an answer to a check is; raises the error that it is otherwise."""
    body = _fields(answer)
    if "decision" not in body:
        raise failure(answer, body)
    typed = _Typed(body)
    word = typed.text("decision")
    if word not in ("allowed", "delayed", "denied") or (word == "denied") == (answer.status < 400):
        raise Unavailable(f"the server answered {answer.status} with the decision {word!r}: is it a Tidegate?")
    names = {name: value for name, value in answer.headers.items() if _for_caller(name, value)}
    return Decision(
        allowed=word != "denied",
        checked=True,
        decision=word,
        policy=typed.text("policy"),
        remaining=typed.number("remaining"),
        limit=typed.number("limit"),
        retry=typed.text("retry"),
        retry_after=typed.seconds("retry_after_ms"),
        delay=typed.seconds("delay_ms") or 0.0,
        reset_at=typed.text("reset_at"),
        ticket=typed.text("ticket"),
        ticket_error=typed.text("ticket_error"),
        decision_id=typed.text("decision_id"),
        status=answer.status,
        detail=typed.text("detail"),
        limits=tuple(_limit(part) for part in typed.parts("policies")),
        marked=typed.names("marked"),
        demoted=typed.names("demoted"),
        priority=typed.text("priority"),
        store_error=typed.text("store_error"),
        headers=names,
    )


def _for_caller(name: str, value: str) -> bool:
    wanted = name in _FOR_CALLERS or name.startswith("x-ratelimit-")
    return wanted and all(" " <= letter <= "~" for letter in value)


def _limit(part: _Typed) -> Limit:
    return Limit(
        name=part.text("name") or "",
        mode=part.text("mode") or "",
        shadow=part.get("shadow", bool) is True,
        decision=part.text("decision") or "",
        remaining=part.number("remaining"),
        limit=part.number("limit"),
        debt=part.number("debt") or 0,
        retry_after=part.seconds("retry_after_ms"),
        cost=part.number("cost"),
        charged=part.get("charged", bool) is True,
    )


def settled(answer: Answer) -> Settled:
    """Returns what a settlement did; raises the error that the answer is otherwise."""
    body = _fields(answer)
    if answer.status != 200 or "policies" not in body or "outcome" not in body:
        raise failure(answer, body)
    typed = _Typed(body)
    charges = {}
    for part in typed.parts("policies"):
        name = part.text("name") or ""
        charges[name] = Charge(
            name=name,
            effect=part.text("effect") or "",
            charged=part.number("charged") or 0,
            used=part.number("used"),
            returned=part.number("returned") or 0,
            owed=part.number("owed") or 0,
            remaining=part.number("remaining"),
            debt=part.number("debt") or 0,
            limit=part.number("limit"),
            note=part.text("note"),
        )
    return Settled(typed.text("outcome"), charges, typed.text("note"), typed.text("decision_id"))


def extended(answer: Answer) -> Extended:
    """Returns the new ticket; raises the error that the answer is otherwise."""
    body = _fields(answer)
    typed = _Typed(body)
    ticket = typed.text("ticket")
    if answer.status != 200 or ticket is None:
        raise failure(answer, body)
    lapses = [part.seconds("lapses_after_ms") for part in typed.parts("places")]
    return Extended(ticket, min((one for one in lapses if one is not None), default=0.0))


def an_outcome(error: Optional[BaseException], undo: bool) -> str:
    """Returns how a block ended of which nothing was said."""
    if error is None:
        return "success"
    if undo:
        return "undone"
    # Cancelled, interrupted or closed early: the work has not failed.
    return "failure" if isinstance(error, Exception) else "ignored"


class Waits:
    """How often a refused check is tried again within `wait` seconds of `start`."""

    def __init__(self, wait: float, start: float) -> None:
        if not isinstance(wait, (int, float)) or not 0 <= wait < math.inf:
            raise InputError(f"`wait` is {wait!r}: pass seconds, 0 or more")
        self._until = start + wait
        self._tries = 0

    def pause(self, answer: Union[Decision, Unavailable], now: float) -> Optional[float]:
        """Returns the pause before the next try; `None` if there is none.

        A stated wait is waited. Places come back at an unknown time: then the pauses grow, with chance, so that callers
        do not come at once. A server that could not be asked is not asked again: the check may have been charged.
        """
        if isinstance(answer, Unavailable):
            pause = answer.retry_after if answer.status == 503 else None
        elif answer.allowed or answer.retry == "never":
            pause = None
        elif answer.retry_after is not None:
            pause = answer.retry_after
        else:
            self._tries += 1
            pause = random.uniform(0.5, 1.0) * min(2.0, 0.02 * 2.0 ** min(self._tries, 10))
        return pause if pause is not None and now + pause < self._until else None


class Seldom:
    """Lets one of many lines of the log through in ten seconds, or now and then one more: threads do not agree."""

    def __init__(self) -> None:
        self._last = -math.inf

    def due(self) -> bool:
        now = time.monotonic()
        if now - self._last < 10:
            return False
        self._last = now
        return True


class Tally(Forks):
    """Counts what a client sees, and tells the log when `on_error` begins to decide. Threads may share it."""

    def __init__(self, on_error: str) -> None:
        if on_error not in ("open", "closed"):
            raise InputError(
                f"`on_error` is {on_error!r}: 'closed' refuses while the server is gone, 'open' lets all pass unlimited"
            )
        self._open = on_error == "open"
        self._counts = Counts()
        self._gone = False
        self._tell_gone, self._tell_unsettled = Seldom(), Seldom()
        super().__init__()

    def forget(self) -> None:
        self._lock = threading.Lock()

    def counts(self) -> Counts:
        with self._lock:
            return self._counts

    def connected(self) -> None:
        with self._lock:
            self._counts = replace(self._counts, connections=self._counts.connections + 1)

    def decided(self, decision: Decision) -> Decision:
        with self._lock:
            now = self._counts
            self._counts = replace(
                now,
                checks=now.checks + 1,
                denied=now.denied + (not decision.allowed),
                unchecked=now.unchecked + (not decision.checked),
                unlimited=now.unlimited + (decision.checked and not decision.limited),
            )
            back = decision.checked and self._gone
            self._gone = not decision.checked
            unchecked = self._counts.unchecked
        if back:
            log.warning("Tidegate answers again; %d checks were not decided since the start", unchecked)
        return decision

    def placeless(self, decision: Decision) -> None:
        """Tells of an `acquire` that took no place."""
        if decision.checked and decision.limited and decision.ticket is None:
            with self._lock:
                self._counts = replace(self._counts, unlimited=self._counts.unlimited + 1)

    def undecided(self, error: Unavailable) -> Decision:
        """Returns what `on_error` decides."""
        passes = "pass unlimited" if self._open else "are refused"
        if self._tell_gone.due():
            log.warning("Tidegate did not decide, and requests %s: %s", passes, error)
        return self.decided(
            Decision(
                allowed=self._open,
                checked=False,
                decision="unchecked",
                retry=None if self._open else "unknown",
                status=200 if self._open else 503,
                detail=None if self._open else "the rate limiter could not be asked",
                error=error,
            )
        )

    def unsettled(self, error: TidegateError) -> None:
        with self._lock:
            self._counts = replace(self._counts, unsettled=self._counts.unsettled + 1)
        if self._tell_unsettled.due():
            log.warning("a decision was not settled; its estimate stands, places lapse after their ttl: %s", error)
