"""What can go wrong, by what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional, Tuple, Type

if TYPE_CHECKING:
    from .answers import Decision


class TidegateError(Exception):
    """Base of all errors of this package. `status` is the server's answer, if it gave one."""

    def __init__(self, message: str, status: Optional[int] = None) -> None:
        super().__init__(message)
        self.status = status


class InputError(TidegateError, ValueError):
    """This call, or the client's set-up, has a mistake. Nothing was charged; mend the call."""


class AccessError(TidegateError):
    """The token is missing or wrong, or may not do this. Raised whatever `on_error` says: waiting does not help."""


class TicketError(TidegateError):
    """The ticket was settled before (409), is too old (410), or was issued by another node or before a restart (421)."""


class Unavailable(TidegateError):
    """The server could not be reached, did not answer in time, or answered something else.

    `retry_after` has the seconds that the server asked to wait, if it did.
    """

    def __init__(
        self, message: str, status: Optional[int] = None, retry_after: Optional[float] = None
    ) -> None:
        super().__init__(message, status)
        self.retry_after = retry_after


class Denied(TidegateError):
    """`spend` or `acquire` was refused, and its block did not run. `decision` says by what, and when to try again."""

    def __init__(self, decision: "Decision") -> None:
        super().__init__(decision.detail or "refused", decision.status)
        self.decision = decision

    def __reduce__(self) -> Tuple[Type["Denied"], Tuple["Decision"]]:
        # Queues of tasks pickle errors.
        return Denied, (self.decision,)

    @property
    def retry_after(self) -> Optional[float]:
        """The seconds after which the same call can pass; `None` if nobody knows, or never (see `decision.retry`)."""
        return self.decision.retry_after
