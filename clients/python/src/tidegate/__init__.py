"""Asks a Tidegate server which requests may pass: rate limits, token budgets, places.

    client = tidegate.Client("http://127.0.0.1:8080", on_error="closed")
    if not client.check({"user.id": "ann"}):
        ...
"""

from .aio import AsyncClient, AsyncWork
from .answers import Charge, Counts, Decision, Extended, Limit, Settled
from .asgi import AsgiMiddleware
from .client import Client, Work
from .errors import AccessError, Denied, InputError, TicketError, TidegateError, Unavailable
from .wsgi import WsgiMiddleware

__all__ = [
    "AccessError",
    "AsgiMiddleware",
    "AsyncClient",
    "AsyncWork",
    "Charge",
    "Client",
    "Counts",
    "Decision",
    "Denied",
    "Extended",
    "InputError",
    "Limit",
    "Settled",
    "TicketError",
    "TidegateError",
    "Unavailable",
    "Work",
    "WsgiMiddleware",
]
