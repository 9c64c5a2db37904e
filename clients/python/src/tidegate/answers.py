"""What the server answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping, Optional, Tuple

from .errors import TidegateError


@dataclass(frozen=True)
class Limit:
    """The answer of one limit within a decision. Times are seconds."""

    name: str
    mode: str
    shadow: bool
    decision: str
    remaining: Optional[int]
    limit: Optional[int]
    debt: int
    retry_after: Optional[float]
    cost: Optional[int]
    charged: bool


@dataclass(frozen=True)
class Decision:
    """The answer to a check. It is true in a condition if the work may begin."""

    allowed: bool
    #: Whether the server decided. If not, `on_error` of the client did, and `error` says why.
    checked: bool
    #: `allowed`, `delayed` (the client has waited for `delay` already), `denied` or `unchecked`.
    decision: str
    #: The policy that binds; `None` if none limits.
    policy: Optional[str] = None
    remaining: Optional[int] = None
    limit: Optional[int] = None
    #: Of a denial: `after` (a known wait), `unknown` or `never`.
    retry: Optional[str] = None
    #: The seconds of that wait.
    retry_after: Optional[float] = None
    delay: float = 0.0
    reset_at: Optional[str] = None
    ticket: Optional[str] = field(default=None, repr=False)
    ticket_error: Optional[str] = None
    decision_id: Optional[str] = None
    #: The HTTP status to answer with.
    status: int = 200
    #: A sentence for people.
    detail: Optional[str] = None
    limits: Tuple[Limit, ...] = ()
    #: Policies that let the request pass over their limit.
    marked: Tuple[str, ...] = ()
    demoted: Tuple[str, ...] = ()
    priority: Optional[str] = None
    #: Why the server's own store could not decide.
    store_error: Optional[str] = None
    #: The rate limit headers, `retry-after` among them, for an answer to one's own caller.
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    error: Optional[TidegateError] = None

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def limited(self) -> bool:
        """Whether any policy limited the request, also in shadow. If not, look at the names of the attributes."""
        return bool(self.limits) or self.policy is not None

    @property
    def would_deny(self) -> Tuple[str, ...]:
        """The policies in shadow mode that would have refused."""
        return tuple(one.name for one in self.limits if one.shadow and one.decision == "denied")


@dataclass(frozen=True)
class Charge:
    """What a settlement did to the charge of one limit."""

    name: str
    #: `returned`, `owed`, `kept` or `forgotten`.
    effect: str
    charged: int
    used: Optional[int]
    returned: int
    owed: int
    remaining: Optional[int]
    debt: int
    limit: Optional[int]
    note: Optional[str]


@dataclass(frozen=True)
class Settled:
    """The answer to a settlement."""

    outcome: Optional[str]
    #: By the name of the policy; of several limits of one policy the last.
    charges: Mapping[str, Charge]
    note: Optional[str]
    decision_id: Optional[str]


@dataclass(frozen=True)
class Extended:
    """The answer to `extend`: the new ticket, and the seconds until the first place lapses."""

    ticket: str = field(repr=False)
    lapses_after: float


@dataclass(frozen=True)
class Counts:
    """What a client has counted since it was made."""

    #: Answers to checks, `unchecked` ones included.
    checks: int = 0
    denied: int = 0
    #: Checks that the server did not decide: `on_error` did. More than none means that limits did not hold, or that
    #: requests were refused for nothing.
    unchecked: int = 0
    #: Checks that no policy limited, and blocks of `acquire` that took no place.
    unlimited: int = 0
    #: Settlements and releases at the end of a block that the server did not take: estimates stand, and places come
    #: back after their `ttl`.
    unsettled: int = 0
    #: Connections opened.
    connections: int = 0
