"""What has locks or connections begins anew in the child of a fork: a thread that held them is not there."""

from __future__ import annotations

import os
import weakref
from typing import Any


class Forks:
    """Has `forget` called in the child, and when it is made."""

    def __init__(self) -> None:
        _ALL.add(self)
        self.forget()

    def forget(self) -> None:
        """Makes new locks, without a look at the old ones."""
        raise NotImplementedError


_ALL: "weakref.WeakSet[Any]" = weakref.WeakSet()


def _forget_all() -> None:
    for one in list(_ALL):
        one.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
