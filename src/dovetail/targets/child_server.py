"""A process that has imported what children need, and forks one for each call.

Importing ExecuTorch takes longer than most lowerings. A child that is forked after the imports starts at once. Its
state is that of a new process after the imports and the functions named in the settings. A thread does not survive a
fork, and what waits for it then waits forever: if the imports leave threads behind, each child is a new Python process,
which imports them again.

The server's input is a socket. On it the server says when its imports are done, and receives one message for each call:
the path of the request, with two descriptors, the socket of the call and what the child prints to. On the socket of the
call it says how the child has ended; when the caller shuts that socket down, the child is killed. When
the process that started the server exits, the server exits, which ends all its children.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import selectors
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

from dovetail.targets import child_main
from dovetail.targets.child_main import answer_request, detach_input, killed_with_parent, python_command

READY = b"ready"
# A message is a path and two descriptors.
_MESSAGE_BYTES = 1 << 14
_DESCRIPTORS = 2


def main(settings: Mapping[str, Any]) -> None:
    """Import what the settings say, and serve until the caller closes its socket and all children have ended."""
    control = socket.socket(fileno=detach_input())
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the caller, which ends its calls
    parent = _open_parent(settings["parent"])
    with _exit_with_parent(parent):
        _import(settings["imports"])
    gc.collect()
    gc.freeze()  # otherwise every child copies the memory of all imported objects when it ends
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # or every child would print it, too
    try:
        control.send(READY)
    except OSError as error:  # the caller has closed its end, perhaps after sending requests
        print(f"{READY!r}: {error}", file=sys.stderr)
    interrupt = signal.SIG_IGN if interrupt is signal.SIG_IGN else signal.SIG_DFL
    _Server(control, parent, interrupt, _has_threads()).serve()


def _has_threads() -> bool:
    """Whether threads run that a fork would lose, such as those of OpenMP; OpenBLAS ends its own before every fork."""
    process = os.fork()
    if process == 0:
        os._exit(0)
    os.waitpid(process, 0)
    return len(os.listdir("/proc/self/task")) > 1


def _open_parent(process: int) -> int:
    """A descriptor that shows when the parent has ended."""
    try:
        parent = os.pidfd_open(process)
    except ProcessLookupError:
        sys.exit(1)
    if os.getppid() != process:  # it had ended, and its number is another process's
        sys.exit(1)
    return parent


@contextmanager
def _exit_with_parent(parent: int) -> Iterator[None]:
    """End this process when its parent ends, although it imports; the thread for it ends with the block."""
    done, finish = os.pipe()

    def watch() -> None:
        ended, _, _ = select.select([parent, done], [], [])
        if parent in ended:
            os._exit(1)

    thread = Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        os.close(finish)
        thread.join()
        os.close(done)


def _import(names: Sequence[str]) -> None:
    """Import modules, and call functions that are named as ``module:function``.

    Errors are only logged here; a call that needs the module fails with its own message.
    """
    for name in names:
        module, _, function = name.partition(":")
        try:
            imported = importlib.import_module(module)
            if function:
                getattr(imported, function)()
        except Exception as error:  # noqa: BLE001 - of whatever package
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)


@dataclass(eq=False, slots=True)
class _Child:
    """A running child. ``process``: its descriptor, which no later process shares."""

    number: int
    process: int
    caller: socket.socket
    is_caller_connected: bool = True


class _Server:
    """The loop of a server: requests that arrive, children that end, callers that leave."""

    def __init__(self, control: socket.socket, parent: int, interrupt: signal.Handlers, has_threads: bool) -> None:
        self._control = control
        self._parent = parent
        self._interrupt = interrupt
        self._has_threads = has_threads
        self._children: set[_Child] = set()
        self._selector = selectors.DefaultSelector()
        self._accepting = True

    def serve(self) -> None:
        """Handle one event after the other."""
        self._selector.register(self._control, selectors.EVENT_READ, self._accept)
        self._selector.register(self._parent, selectors.EVENT_READ, lambda: os._exit(1))
        while self._accepting or self._children:
            for key, _ in self._selector.select():
                key.data()

    def _accept(self) -> None:
        """Fork a child for the next request, if there will be another one."""
        message, received, *_ = socket.recv_fds(self._control, _MESSAGE_BYTES, _DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
        if not message:
            self._selector.unregister(self._control)
            self._accepting = False
            return
        caller, output = socket.socket(fileno=received[0]), received[1]
        server = os.getpid()
        try:
            number = os.fork()
        except OSError as error:  # no memory, or too many processes
            _refuse(caller, output, f"fork failed: {error}")
            return
        if number == 0:
            killed_with_parent(server)
            self._run_child(Path(os.fsdecode(message)), caller, output)
        try:
            process = os.pidfd_open(number)
        except OSError as error:  # too many open descriptors
            os.kill(number, signal.SIGKILL)
            os.waitpid(number, 0)
            _refuse(caller, output, f"pidfd_open failed: {error}")
            return
        os.close(output)
        child = _Child(number, process, caller)
        self._children.add(child)
        self._selector.register(child.process, selectors.EVENT_READ, lambda: self._report_exit(child))
        self._selector.register(caller, selectors.EVENT_READ, lambda: self._kill(child))

    def _run_child(self, request: Path, caller: socket.socket, output: int) -> None:
        """Answer the request in the forked process, and end it."""
        signal.signal(signal.SIGINT, self._interrupt)
        for number in (1, 2):
            os.dup2(output, number)
        self._selector.close()
        for child in self._children:
            child.caller.close()
            os.close(child.process)
        for held in (self._control, caller):
            held.close()
        os.close(self._parent)
        os.close(output)
        content = json.loads(request.read_text())
        if self._has_threads:
            command = python_command(child_main.__name__, {"request": str(request), "parent": os.getppid()})
            os.execve(command[0], command, content["environment"])
        os.environ.clear()
        os.environ.update(content["environment"])
        answer_request(content)
        sys.exit(0)

    def _report_exit(self, child: _Child) -> None:
        """Tell the caller how the child has ended, and what CPU time this process and its children used so far."""
        self._children.remove(child)
        self._selector.unregister(child.process)
        os.close(child.process)
        self._forget_caller(child)
        _, status = os.waitpid(child.number, 0)
        _tell(child.caller, {"code": os.waitstatus_to_exitcode(status), "cpu_s": _cpu_seconds()})
        child.caller.close()

    def _kill(self, child: _Child) -> None:
        """Its caller has left; if it has ended in the meantime there is nothing to do."""
        if child in self._children:
            self._forget_caller(child)
            signal.pidfd_send_signal(child.process, signal.SIGKILL)

    def _forget_caller(self, child: _Child) -> None:
        if child.is_caller_connected:
            self._selector.unregister(child.caller)
            child.is_caller_connected = False


def _tell(caller: socket.socket, content: Mapping[str, Any]) -> None:
    try:
        caller.sendall(json.dumps(content).encode() + b"\n")
    except OSError as error:  # the caller has left
        print(f"{content}: {error}", file=sys.stderr)


def _refuse(caller: socket.socket, output: int, why: str) -> None:
    """Tell the caller that there is no child, and forget the call."""
    _tell(caller, {"code": 1, "cpu_s": _cpu_seconds(), "error": f"the child process could not be started ({why})"})
    caller.close()
    os.close(output)


def _cpu_seconds() -> float:
    """The CPU time of this process, and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
