"""The servers of this process (``child_server``): one for each module whose functions are called in children."""

from __future__ import annotations

import atexit
import json
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from threading import RLock
from typing import Any

from dovetail.targets.child_sources import source_sha256

# Elsewhere libraries do not survive a fork, or there is none.
HAS_SERVERS = sys.platform == "linux"
# A variable that pytest changes for every test, and that decides nothing.
_NO_SETTING = "PYTEST_CURRENT_TEST"
# How long what a stopped child printed may take to arrive, and how long a server may take to end.
_LAST_S = 5.0
_READ_BYTES = 1 << 16
_LAST_WORDS_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class _Identity:
    """What decides what a server has imported; a server whose identity is no longer right is replaced."""

    process: int
    sources: str
    environment: Mapping[str, str]


class Server:
    """A running server; its children are called by any thread."""

    def __init__(self, module: str, identity: _Identity) -> None:
        self.identity = identity
        self.cpu_s = 0.0  # of itself and of its children, as far as they have ended
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the server runs
        self._control, its_input = socket.socketpair()
        with its_input:
            command = [sys.executable, "-m", "dovetail.targets.child_server", module]
            self._process = subprocess.Popen(
                command, stdin=its_input.fileno(), stdout=self._printed, stderr=subprocess.STDOUT
            )

    def call(self, request: Mapping[str, Any], time_limit_s: float) -> tuple[int | None, bytes]:
        """Run a child to its end: its exit code, or None if it was stopped after the time limit, and what it printed.

        The child of a call that is left early, by an interruption, is killed, because its socket is closed.
        """
        deadline = time.monotonic() + time_limit_s
        caller, its_end = socket.socketpair()
        read_end, write_end = os.pipe()
        with caller, open(read_end, "rb", buffering=0):
            with its_end, open(write_end, "wb", buffering=0):
                try:
                    socket.send_fds(self._control, [b"x"], [its_end.fileno(), write_end])
                except OSError:
                    return self._lost()
            lines, printed, in_time = _send_and_wait(caller, read_end, request, deadline)
            if not in_time:
                caller.close()
                if not lines:  # it still imports
                    self.kill()
                return None, printed + _wait(None, read_end, time.monotonic() + _LAST_S)[1]
        if len(lines) < 2:  # the server ended, and the child with it
            code, last_words = self._lost()
            return code, last_words + printed
        content = json.loads(lines[-1])
        self.cpu_s = max(self.cpu_s, content["cpu_s"])
        return int(content["code"]), printed

    def _lost(self) -> tuple[int, bytes]:
        """How the server ended, and its last words; with it end its children."""
        if not self.has_ended(_LAST_S):
            self.kill()
        return self._process.wait(), os.pread(self._printed.fileno(), _LAST_WORDS_BYTES, 0)

    def kill(self) -> None:
        """End it and its children at once."""
        self._process.kill()

    def close(self) -> None:
        """Let it end when its children have ended."""
        self._control.close()

    def has_ended(self, timeout_s: float = 0.0) -> bool:
        """Whether it has ended; if so, its CPU time counts as that of a child of this process."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True


def _send_and_wait(
    caller: socket.socket, output: int, request: Mapping[str, Any], deadline: float
) -> tuple[list[bytes], bytes, bool]:
    try:
        caller.sendall(json.dumps({**request, "environment": dict(os.environ)}).encode() + b"\n")
    except OSError:  # the server was killed
        return [], b"", True
    return _wait(caller, output, deadline)


def _wait(caller: socket.socket | None, output: int, deadline: float) -> tuple[list[bytes], bytes, bool]:
    """The lines of the server, what the child printed, and whether that is all: the child has ended in time.

    A process that the child started may keep the output open: it is not waited for.
    """
    said, printed = bytearray(), bytearray()
    has_ended = False
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ, printed)
        if caller is not None:
            selector.register(caller, selectors.EVENT_READ, said)
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                part = _read(key.fd)
                key.data.extend(part)
                if not part:
                    selector.unregister(key.fd)
                    if key.data is said:
                        has_ended, deadline = True, min(deadline, time.monotonic() + _LAST_S)
    return bytes(said).splitlines(), bytes(printed), has_ended


def _read(source: int) -> bytes:
    try:
        return os.read(source, _READ_BYTES)
    except ConnectionResetError:  # the other end was killed before it had read everything
        return b""


class Servers:
    """The servers of this process by module, and those that were replaced and still have children."""

    def __init__(self) -> None:
        self._lock = RLock()  # a signal handler may run while the main thread holds it
        self._current: dict[str, Server] = {}
        self._replaced: list[Server] = []

    def of(self, module: str) -> Server:
        """The server of a module; one is started if there is none that has imported what would be imported now."""
        environment = {name: value for name, value in os.environ.items() if name != _NO_SETTING}
        identity = _Identity(os.getpid(), source_sha256(module), environment)
        with self._lock:
            server = self._current.get(module)
            if server is None or server.identity != identity or server.has_ended():
                self._replace(server)
                server = self._current[module] = Server(module, identity)
            return server

    def _replace(self, server: Server | None) -> None:
        """Let a server end."""
        if server is not None:
            server.close()
            self._replaced.append(server)
        self._replaced = [server for server in self._own(self._replaced) if not server.has_ended()]

    def kill(self) -> None:
        """End all of them, and their children, at once."""
        with self._lock:
            for server in self._running():
                server.kill()

    def end(self) -> None:
        """Let them end, when this process does."""
        with self._lock:
            running = self._running()
            for server in running:
                server.close()
            for server in running:
                if not server.has_ended(_LAST_S):
                    server.kill()
                    server.has_ended(_LAST_S)

    def cpu_seconds(self) -> float:
        """The CPU time of those that the system does not yet count as children that have ended."""
        with self._lock:
            return sum(server.cpu_s for server in self._running())

    def _running(self) -> list[Server]:
        servers = self._own([*self._current.values(), *self._replaced])
        return [server for server in servers if not server.has_ended()]

    @staticmethod
    def _own(servers: list[Server]) -> list[Server]:
        """Without those of the process that this one was forked from."""
        return [server for server in servers if server.identity.process == os.getpid()]


SERVERS = Servers()
atexit.register(SERVERS.end)
