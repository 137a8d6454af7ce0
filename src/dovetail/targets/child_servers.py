"""The servers of this process (``child_server``): one for each set of imports that children need."""

from __future__ import annotations

import atexit
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import RLock

from dovetail.clock import counting
from dovetail.targets import child_server
from dovetail.targets.child_main import import_path, python_command
from dovetail.targets.child_sources import source_sha256

# Variables that change while a program runs, and that no library reads when it is imported.
_NO_SETTINGS = ("COLUMNS", "LINES", "DOVETAIL_CACHE_DIR", "PYTEST_CURRENT_TEST")
# How long a server may take to say how a child has ended that was killed, and how long one that was killed may take.
_LAST_S = 5.0
_READ_BYTES = 1 << 16
_POLL_S = 0.005


def _has_servers() -> bool:
    """Elsewhere libraries do not survive a fork, or there is none, or no descriptors of processes."""
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):  # which depends on how Python was built
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return hasattr(signal, "pidfd_send_signal")


HAS_SERVERS = _has_servers()


@dataclass(frozen=True, slots=True)
class _Identity:
    """What decides what a server has imported, and what its children inherit: when that changes, it is replaced."""

    sources: tuple[str, ...]
    path: tuple[str, ...]
    environment: Mapping[str, str]
    inherited: tuple[object, ...]

    @classmethod
    def now(cls, imports: Sequence[str]) -> _Identity:
        packages = {imports[0].partition(".")[0], __name__.partition(".")[0]}
        return cls(
            tuple(source_sha256(name.partition(":")[0]) for name in imports if name.partition(".")[0] in packages),
            tuple(import_path()),
            {name: value for name, value in os.environ.items() if name not in _NO_SETTINGS},
            _inherited(),
        )


def _inherited() -> tuple[object, ...]:
    """What a process takes over from the one that starts it, apart from the environment."""
    import resource

    limits = [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")]
    status = Path("/proc/self/status").read_text().splitlines()
    mask = [line for line in status if line.startswith("Umask:")]
    return (*limits, *mask, os.getpriority(os.PRIO_PROCESS, 0), frozenset(os.sched_getaffinity(0)))


class Server:
    """A running server."""

    def __init__(self, imports: Sequence[str], identity: _Identity, lock: RLock) -> None:
        self.identity = identity
        self.calls: set[Call] = set()
        self.is_killed = False
        self._lock = lock
        self.cpu_s = 0.0  # of itself and of its children, as far as they have ended
        self._is_ready = False
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the server runs
        self._control, its_input = socket.socketpair(type=socket.SOCK_SEQPACKET)
        settings = {"parent": os.getpid(), "imports": list(imports)}
        with its_input:
            self._process = subprocess.Popen(
                python_command(child_server.__name__, settings),
                stdin=its_input.fileno(),
                stdout=self._printed,
                stderr=subprocess.STDOUT,
            )

    def ask(self, request: Path, caller: int, output: int) -> None:
        """Ask for a child; if the server has ended, the caller finds that its socket is closed."""
        try:
            socket.send_fds(self._control, [os.fsencode(request)], [caller, output])
        except OSError:
            self.kill()

    def is_ready(self) -> bool:
        """Whether its imports are done."""
        if not self._is_ready:
            try:
                self._is_ready = self._control.recv(len(child_server.READY), socket.MSG_DONTWAIT) == child_server.READY
            except OSError:  # it has said nothing yet, or has ended
                return False
        return self._is_ready

    def kill(self) -> None:
        """End it and its children at once."""
        self.is_killed = True  # it takes a moment to end
        self._process.kill()

    def leave(self, call: Call) -> None:
        """A call does not wait for the imports any longer; if nobody does, they are ended."""
        with self._lock:
            self.calls.discard(call)
            if not self.calls:
                self.kill()

    def close(self) -> None:
        """Let it end when its children have ended; in a process that was forked from this one: let go of it."""
        self._control.close()

    def has_ended(self, timeout_s: float = 0.0) -> bool:
        """Whether it has ended; if so, its CPU time counts as that of a child of this process."""
        deadline = time.monotonic() + timeout_s
        while True:
            with counting():
                if self._process.poll() is not None:
                    return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)

    def last_words(self) -> tuple[int, bytes]:
        """End it; how it ended, and what it printed."""
        if not self.has_ended(_LAST_S):
            self.kill()
            self.has_ended(_LAST_S)
        end = os.fstat(self._printed.fileno()).st_size
        return self._process.wait(), os.pread(self._printed.fileno(), _READ_BYTES, max(0, end - _READ_BYTES))


class Call:
    """A child that a server was asked for. Closed before it has ended, as by an interruption, it is killed."""

    def __init__(self, server: Server, request: Path) -> None:
        self.server = server
        self._socket, its_end = socket.socketpair()
        self._output, its_output = os.pipe()
        with its_end, open(its_output, "wb", buffering=0):
            server.ask(request, its_end.fileno(), its_output)
        os.set_blocking(self._output, False)
        self._said, self._printed = bytearray(), bytearray()

    def wait(self, time_limit_s: float) -> tuple[int | None, bytes]:
        """The exit code of the child, or None if it was stopped after the time limit, and what it printed."""
        in_time = self._read(time.monotonic() + time_limit_s)
        if not in_time:
            if self.server.is_ready():
                self.leave()
                self._read(time.monotonic() + _LAST_S)
            else:  # imports that do not end
                self.server.leave(self)
        self._drain()
        printed = bytes(self._printed)
        if not self._said:  # no child is left without its server
            code, last_words = self.server.last_words() if in_time else (None, b"")
            return code, last_words + printed
        end = json.loads(self._said)
        with counting():
            self.server.cpu_s = max(self.server.cpu_s, end["cpu_s"])
        return int(end["code"]) if in_time else None, printed + end.get("error", "").encode()

    def leave(self) -> None:
        """The server kills the child, if it has not ended."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:  # the server has ended
            return

    def close(self) -> None:
        self._socket.close()
        os.close(self._output)

    def _read(self, deadline: float) -> bool:
        """Read until the server has said how the child ended, or has ended itself; False if it is not in time."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            selector.register(self._output, selectors.EVENT_READ)
            while (left := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    if key.fileobj is not self._socket:
                        if self._drain():
                            selector.unregister(self._output)
                    elif not (part := _received(self._socket)) or part.endswith(b"\n"):
                        self._said += part
                        return True
                    else:
                        self._said += part
        return False

    def _drain(self) -> bool:
        """Take what the child has printed so far; True if there will be no more."""
        try:
            while part := os.read(self._output, _READ_BYTES):
                self._printed += part
        except BlockingIOError:
            return False
        return True


def _received(source: socket.socket) -> bytes:
    try:
        return source.recv(_READ_BYTES)
    except ConnectionResetError:  # the other end was killed before it had read everything
        return b""


class Servers:
    """The servers of this process by their imports, and those that were replaced and still have children."""

    def __init__(self) -> None:
        self._current: dict[tuple[str, ...], Server] = {}
        self._replaced: list[Server] = []
        self._lock = RLock()  # a signal handler may run while the main thread holds it

    def start(self, imports: Sequence[str], request: Path) -> Call:
        """Ask the server that has imported this for a child; one is started if there is none that is still right."""
        key, identity = tuple(imports), _Identity.now(imports)
        with self._lock:
            server = self._current.get(key)
            if server is None or server.is_killed or server.identity != identity or server.has_ended():
                self._replace(server)
                server = self._current[key] = Server(imports, identity, self._lock)
            call = Call(server, request)
            server.calls.add(call)
            return call

    def finish(self, call: Call) -> None:
        """Let go of a call; a child that has not ended is killed."""
        with self._lock:
            call.server.calls.discard(call)
            call.close()

    def _replace(self, server: Server | None) -> None:
        """Let a server end."""
        if server is not None:
            server.close()
            self._replaced.append(server)
        self._replaced = [server for server in self._replaced if not server.has_ended()]

    def kill(self) -> None:
        """End all of them, and their children, at once."""
        with self._lock:
            for server in self._running():
                server.kill()

    def end(self) -> None:
        """End all of them, when this process ends."""
        with self._lock:
            running = self._running()
            for server in running:
                server.kill()
            for server in running:
                server.has_ended(_LAST_S)

    def forget(self) -> None:
        """In a process that was forked from this one: it has servers of its own."""
        for server in (*self._current.values(), *self._replaced):
            server.close()
            for call in server.calls:
                call.close()
        self._current, self._replaced = {}, []
        self._lock = RLock()  # another thread may have held it

    def cpu_seconds(self) -> float:
        """The CPU time of those that the system does not yet count as children that have ended."""
        return sum(server.cpu_s for server in self._running())

    def _running(self) -> list[Server]:
        return [server for server in (*self._current.values(), *self._replaced) if not server.has_ended()]


SERVERS = Servers()
atexit.register(SERVERS.end)
if HAS_SERVERS:
    os.register_at_fork(after_in_child=SERVERS.forget)
