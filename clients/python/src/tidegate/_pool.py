"""Kept connections for threads."""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, List, Optional, Tuple

from ._fork import Forks
from ._wire import Address, Answer, Reader, Request
from .errors import Unavailable

#: The server closes idle connections after 150 s. A shorter time here, so that both do not happen at once.
MOST_IDLE = 60.0


def readable(connection: Any) -> bool:
    """Says whether a connection that waits for nothing has something to read: its end, or bytes nobody asked for."""
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(connection, select.POLLIN | select.POLLHUP | select.POLLERR)
        return bool(poll.poll(0))
    return bool(select.select([connection], [], [], 0)[0])


def unreachable(to: Address, error: BaseException) -> Unavailable:
    if isinstance(error, ssl.SSLCertVerificationError):
        return Unavailable(
            f"the certificate of {to.url} is not trusted ({error.verify_message}): "
            "pass tls=ssl.create_default_context(cafile='ca.pem')"
        )
    return Unavailable(f"no connection to {to.url}: {error or type(error).__name__}; is tidegate serve running there?")


def too_late(to: Address, deadline: float, doing: str) -> Unavailable:
    return Unavailable(f"{to.url} did not answer within the deadline of {deadline:g} s, while {doing}")


class Time:
    """The time that a call has left."""

    def __init__(self, to: Address, deadline: float) -> None:
        self._to, self._deadline, self._until = to, deadline, time.monotonic() + deadline

    def left(self, doing: str) -> float:
        left = self._until - time.monotonic()
        if left <= 0:
            raise self.over(doing)
        return left

    def over(self, doing: str) -> Unavailable:
        return too_late(self._to, self._deadline, doing)


class _Names:
    """Resolves the host in a thread, of which there is at most one: the system's resolver knows no deadline."""

    def __init__(self, to: Address) -> None:
        self._to = to
        self._lock = threading.Lock()
        self._done: Optional[threading.Event] = None
        self._found: List[Any] = []

    def addresses(self, time_left: Time) -> List[Any]:
        try:
            return socket.getaddrinfo(
                self._to.host, self._to.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
            )
        except OSError:
            pass  # A name.
        with self._lock:
            if self._done is None:
                self._done = threading.Event()
                threading.Thread(target=self._resolve, args=(self._done,), daemon=True, name="tidegate-dns").start()
            done = self._done
        if not done.wait(time_left.left("resolving its name")):
            raise time_left.over("resolving its name")
        found = self._found
        if isinstance(found[0], OSError):
            raise found[0]
        return found

    def _resolve(self, done: threading.Event) -> None:
        found: List[Any]
        try:
            found = list(socket.getaddrinfo(self._to.host, self._to.port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            found = [error if isinstance(error, OSError) else OSError(str(error))]
        with self._lock:
            self._found, self._done = found or [OSError("the name has no address")], None
        done.set()


class Pool(Forks):
    """At most `most` connections to one server; a thread that finds none free waits, within its deadline."""

    def __init__(
        self, to: Address, request: Request, most: int, deadline: float, connected: Callable[[], None]
    ) -> None:
        self._to, self._request, self._most, self._deadline = to, request, most, deadline
        self._connected = connected
        self._idle: List[Tuple[socket.socket, float]] = []
        super().__init__()

    def forget(self) -> None:
        # Connections stay the parent's, else each reads the other's answers.
        self._names = _Names(self._to)
        self._lock = threading.Lock()
        self._waiting: Deque[_Turn] = deque()
        for connection, _ in self._idle:
            _close(connection)
        self._idle = []
        self._open = 0
        self._closed = False

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            self._open -= len(idle)
        for connection, _ in idle:
            _close(connection)

    def ask(self, path: str, body: bytes, repeatable: bool) -> Answer:
        """Asks on a kept connection, else on a new one, within one deadline for everything.

        A kept connection may be closed by the server at any moment. Before anything is sent that is noticed, and costs
        nothing. After it, only what is `repeatable` is asked again, once.
        """
        time_left, request = Time(self._to, self._deadline), self._request.write(path, body)
        connection, kept = self._take(time_left)
        try:
            return self._exchange(connection, request, time_left)
        except _Closed as closed:
            if not kept or not (repeatable or not closed.sent):
                raise closed.why from None
        connection = self._new(time_left)
        try:
            return self._exchange(connection, request, time_left)
        except _Closed as closed:
            raise closed.why from None

    def _take(self, time_left: Time) -> Tuple[socket.socket, bool]:
        # The last one given back is taken first, so that the others grow old and are closed.
        turn: Optional[_Turn] = None
        with self._lock:
            if self._closed:
                raise RuntimeError("this Tidegate client is closed")
            while self._idle:
                connection, since = self._idle.pop()
                if time.monotonic() - since < MOST_IDLE and not readable(connection):
                    return connection, True
                self._open -= 1
                _close(connection)
            if self._open < self._most:
                self._open += 1
            else:
                turn = _Turn()
                self._waiting.append(turn)
        if turn is not None:
            handed = self._wait(turn, time_left)
            if handed is not None:
                if not readable(handed):
                    return handed, True
                _close(handed)
        return self._connect(time_left), False

    def _wait(self, turn: "_Turn", time_left: Time) -> Optional[socket.socket]:
        """Waits for a place, in the order of the callers. Returns the connection that has it, if there is one."""
        what = f"waiting for one of its {self._most} connections (`connections`)"
        try:
            if not turn.come.wait(time_left.left(what)):
                raise time_left.over(what)
        except BaseException:
            with self._lock:
                if turn.come.is_set():
                    self._hand_on(turn.connection)
                else:
                    self._waiting.remove(turn)
            raise
        return turn.connection

    def _hand_on(self, connection: Optional[socket.socket]) -> Optional[socket.socket]:
        """Gives a place, with its connection or without, to the next who waits. The caller holds the lock, and closes
        what is returned.
        """
        if self._waiting and self._open <= self._most:
            self._waiting.popleft().give(connection)
        elif connection is None or self._closed or self._open > self._most:
            self._open -= 1
            return connection
        else:
            self._idle.append((connection, time.monotonic()))
        return None

    def _new(self, time_left: Time) -> socket.socket:
        with self._lock:
            # In place of one that was just dropped; for a moment there may be one more than `most`.
            self._open += 1
        return self._connect(time_left)

    def _connect(self, time_left: Time) -> socket.socket:
        try:
            connection = self._connection(time_left)
        except BaseException as error:
            self._drop(None)
            if isinstance(error, socket.timeout):
                raise time_left.over("connecting") from None
            if isinstance(error, OSError):
                raise unreachable(self._to, error) from None
            raise
        self._connected()
        return connection

    def _connection(self, time_left: Time) -> socket.socket:
        if self._to.path is not None:
            return _connected(socket.AF_UNIX, self._to.path, time_left)
        error: Optional[OSError] = None
        for family, _, _, _, where in self._names.addresses(time_left):
            try:
                connection = _connected(family, where, time_left)
            except OSError as failed:
                error = failed
                continue
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return connection if self._to.tls is None else self._encrypted(connection, time_left)
            except BaseException:
                connection.close()
                raise
        raise error or OSError("the name has no address")

    def _encrypted(self, connection: socket.socket, time_left: Time) -> socket.socket:
        assert self._to.tls is not None
        encrypted = self._to.tls.wrap_socket(
            connection, server_hostname=self._to.host, do_handshake_on_connect=False
        )
        try:
            encrypted.settimeout(time_left.left("agreeing on TLS"))
            encrypted.do_handshake()
        except BaseException:
            encrypted.close()
            raise
        return encrypted

    def _exchange(self, connection: socket.socket, request: bytes, time_left: Time) -> Answer:
        try:
            answer = _exchange(connection, request, time_left)
        except BaseException:
            # Also when the thread is interrupted: a late answer must not be taken for that of the next call.
            self._drop(connection)
            raise
        if answer.keep:
            self._give_back(connection)
        else:
            self._drop(connection)
        return answer

    def _give_back(self, connection: socket.socket) -> None:
        with self._lock:
            unused = [self._hand_on(connection)]
            if self._idle and time.monotonic() - self._idle[0][1] > MOST_IDLE:
                unused.append(self._idle.pop(0)[0])
                self._open -= 1
        for one in unused:
            if one is not None:
                _close(one)

    def _drop(self, connection: Optional[socket.socket]) -> None:
        if connection is not None:
            _close(connection)
        with self._lock:
            self._hand_on(None)


class _Turn:
    """A thread that waits for a place."""

    def __init__(self) -> None:
        self.come = threading.Event()
        self.connection: Optional[socket.socket] = None

    def give(self, connection: Optional[socket.socket]) -> None:
        self.connection = connection
        self.come.set()


class _Closed(Exception):
    """The server has closed the connection and no byte of an answer came; perhaps the request was `sent`."""

    def __init__(self, why: Unavailable, sent: bool) -> None:
        super().__init__(why)
        self.why, self.sent = why, sent


def _exchange(connection: socket.socket, request: bytes, time_left: Time) -> Answer:
    reader = Reader()
    try:
        connection.settimeout(time_left.left("sending"))
        try:
            sent = connection.send(request)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise _Closed(Unavailable(f"the server closed the connection: {error}"), sent=False) from None
        try:
            if sent < len(request):
                connection.settimeout(time_left.left("sending"))
                connection.sendall(request[sent:])
        except (BrokenPipeError, ConnectionResetError):
            pass  # It may have answered before it read everything.
        while True:
            connection.settimeout(time_left.left("waiting for its answer"))
            try:
                data = connection.recv(64 * 1024)
            except (ConnectionResetError, ssl.SSLEOFError):
                data = b""
            if not data:
                if not reader.began:
                    raise _Closed(Unavailable("the server closed the connection without an answer"), sent=True)
                return reader.end()
            answer = reader.feed(data)
            if answer is not None:
                return answer
    except socket.timeout:
        raise time_left.over("waiting for its answer") from None
    except OSError as error:
        raise Unavailable(f"the connection to the server broke: {error}") from None


def _connected(family: int, where: Any, time_left: Time) -> socket.socket:
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.settimeout(time_left.left("connecting"))
        connection.connect(where)
        return connection
    except BaseException:
        connection.close()
        raise


def _close(connection: socket.socket) -> None:
    try:
        connection.close()
    except OSError:
        pass
