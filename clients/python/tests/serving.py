"""A real Tidegate server for tests, and plain sockets that misbehave."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional

ROOT = Path(__file__).resolve().parents[3]
#: Long enough for a busy machine; a test that passes never waits for it.
PATIENCE = 100.0


def program() -> str:
    """Returns the path of the server: of TIDEGATE, else on PATH, else as cargo has built it."""
    named = os.environ.get("TIDEGATE")
    if named:
        if not os.access(named, os.X_OK):
            raise SystemExit(f"TIDEGATE={named} is no program")
        return named
    built = [ROOT / "target" / profile / "tidegate" for profile in ("release", "debug")]
    found = shutil.which("tidegate") or next((str(path) for path in built if os.access(path, os.X_OK)), None)
    if found is None:
        raise SystemExit("no tidegate to test with: set TIDEGATE=PATH, or cargo build -p tidegate-cli")
    return found


def scenario_file() -> Any:
    return json.loads((ROOT / "clients" / "scenarios.json").read_text("utf-8"))


def within(what: str, holds: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > until:
            raise AssertionError(f"not within {PATIENCE} s: {what}")
        time.sleep(0.005)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Server:
    """`tidegate serve` with a policy file in a folder of its own, killed at the end."""

    def __init__(
        self, policies: Any, *, token: Optional[str] = None, listen: str = "", options: List[str] = []
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="tidegate-")
        self.folder = Path(self._folder.name)
        text = policies if isinstance(policies, str) else json.dumps(policies)
        (self.folder / "policies.yaml").write_text(text, "utf-8")
        self.listen = listen or f"127.0.0.1:{free_port()}"
        self.url = self.listen if listen.startswith("unix:") else f"http://{self.listen}"
        self._command = [program(), "serve", "-c", "policies.yaml", "--http", self.listen, *options]
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE")}
        if token is not None:
            self._environment["TIDEGATE_TOKEN"] = token
        self._process: Optional[subprocess.Popen[bytes]] = None
        self.start()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._folder.cleanup()

    def start(self) -> None:
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                self._command, cwd=self.folder, env=self._environment, stdout=log, stderr=log
            )
        try:
            within("the server listens", self._listens)
        except BaseException:
            self.kill()
            raise

    def _listens(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"the server ended: {(self.folder / 'log').read_text('utf-8')[-2000:]}")
        unix = self.listen.startswith("unix:")
        host, _, port = self.listen.rpartition(":")
        family = socket.AF_UNIX if unix else socket.AF_INET6 if "[" in host else socket.AF_INET
        with socket.socket(family) as connection:
            return connection.connect_ex(self.listen[5:] if unix else (host.strip("[]"), int(port))) == 0

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        stat = Path(f"/proc/{self._process.pid}/stat")
        if stat.exists():
            within("the server stands still", lambda: ") T" in stat.read_text("latin-1"))

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def raw_server(serve: Callable[[socket.socket, int], None]) -> Iterator[str]:
    """A listener on loopback that does to each connection what `serve` says, given its number from 0."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(64)
    open_ones: List[socket.socket] = []

    def each(connection: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError):
            serve(connection, number)
        with contextlib.suppress(OSError):
            connection.close()

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                open_ones.append(connection)
                threading.Thread(target=each, args=(connection, len(open_ones) - 1), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for connection in open_ones:
            with contextlib.suppress(OSError):
                connection.close()


def read_request(connection: socket.socket) -> bytes:
    """Reads one whole request."""
    got = b""
    while b"\r\n\r\n" not in got:
        piece = connection.recv(65536)
        if not piece:
            raise OSError("the client has gone")
        got += piece
    head, _, body = got.partition(b"\r\n\r\n")
    fields: Dict[str, str] = dict(
        line.lower().split(": ", 1) for line in head.decode("latin-1").split("\r\n")[1:]
    )
    while len(body) < int(fields["content-length"]):
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


ALLOWED = b'{"decision":"allowed","policy":"p","remaining":2,"limit":3,"retry":null,"retry_after_ms":null,"policies":[]}'


def answer(body: bytes = ALLOWED, status: str = "200 OK", more: bytes = b"") -> bytes:
    return b"HTTP/1.1 %s\r\n%scontent-length: %d\r\n\r\n%s" % (status.encode(), more, len(body), body)
