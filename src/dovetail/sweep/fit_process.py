"""A process that fits graphs one after the other: it imports once, and a crash or a hang ends only this process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from dovetail.sweep.fit_graph import FitRequest, fit_graph
from dovetail.sweep.outcome import Failure, FailureKind, Outcome


class FitProcess:
    """Calls ``fit_graph`` or another judge in a child process, which is replaced if it ends or exceeds the time limit.

    The vendors' tools run in children of that process, and end with it. Its temporary files are in a folder that is
    removed with it, however it ends.
    """

    def __init__(self, time_limit_s: float, judge: Callable[[FitRequest], Outcome] = fit_graph) -> None:
        self._time_limit_s, self._judge = time_limit_s, judge
        self._process: BaseProcess | None = None
        self._connection: Connection | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> FitProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def __call__(self, request: FitRequest) -> Outcome:
        connection = self._connection or self._start()
        try:
            connection.send(request)
            if connection.poll(self._time_limit_s):
                outcome: Outcome = connection.recv()
                return outcome
        except (EOFError, OSError):  # the other end is gone
            code = self.stop()
            return _unfinished(f"the process that fitted it ended with code {code}")
        self.stop()
        return _unfinished(f"not finished within {self._time_limit_s:g} s")

    def stop(self) -> int | None:
        """End the process; its exit code, if it had ended by itself."""
        code = None
        if self._process is not None and self._connection is not None:
            self._process.join(1.0 if not self._process.is_alive() else 0.1)
            code = self._process.exitcode
            self._process.kill()
            self._process.join()
            self._connection.close()
        if self._scratch is not None:
            self._scratch.cleanup()
        self._process = self._connection = self._scratch = None
        return code

    def _start(self) -> Connection:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._scratch = tempfile.TemporaryDirectory(prefix="dovetail-sweep-", ignore_cleanup_errors=True)
        self._process = context.Process(target=_serve, args=(theirs, self._scratch.name, self._judge), daemon=True)
        self._process.start()
        theirs.close()
        return self._connection


def _unfinished(cause: str) -> Outcome:
    return Outcome((Failure(FailureKind.UNFINISHED, cause),))


def _serve(connection: Connection, scratch: str, judge: Callable[[FitRequest], Outcome]) -> None:
    """The child's side: Ctrl-C is for the parent, which then ends this process and removes the folder ``scratch``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TMPDIR"] = tempfile.tempdir = scratch  # the first is for its children
    while True:
        try:
            request: FitRequest = connection.recv()
            connection.send(judge(request))
        except (EOFError, OSError):  # the parent has ended
            return
