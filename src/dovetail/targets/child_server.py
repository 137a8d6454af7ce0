"""A process that has imported what the functions of one module need, and forks a child for each call of one.

Importing ExecuTorch takes longer than most lowerings. A child that is forked behind the imports starts at once, and is
as fresh as one that imports them itself: nothing but imports has happened before. The server reads requests from the
socket that is its input. With each comes a socket of its own, which carries the request and, in lines, that the child
has started and how it has ended; when the caller closes it, the child is killed. The server ends when its own socket is
closed.
"""

from __future__ import annotations

import importlib
import json
import os
import selectors
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Any

from dovetail.targets.child_main import answer_request, detach_input, killed_with_parent

# The name under which a module lists what its functions import, and which is safe to have before a fork: a package that
# starts threads of its own when it is imported is not.
IMPORTS = "IMPORTS"


def main(module: str) -> None:
    """Serve until the caller closes its socket and the children of all requests have ended."""
    control = socket.socket(fileno=detach_input())
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without a word, as the caller reports it
    _import(module)
    _Server(control).serve()


def _import(module: str) -> None:
    """Import the module and what it lists; what cannot be imported is left to the call, which reports it."""
    try:
        names = [module, *getattr(importlib.import_module(module), IMPORTS, ())]
        for name in names:
            importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - of whatever package
        print(f"{module}: {type(error).__name__}: {error}", file=sys.stderr)


class _Server:
    """The loop of a server: requests that arrive, children that end, callers that are gone."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._sockets: dict[int, socket.socket] = {}  # by process number
        self._selector = selectors.DefaultSelector()
        self._woken, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        self._accepting = True

    def serve(self) -> None:
        """Handle one event after the other."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake.fileno())
        self._selector.register(self._control, selectors.EVENT_READ, self._accept)
        self._selector.register(self._woken, selectors.EVENT_READ, self._reap)
        while self._accepting or self._sockets:
            for key, _ in self._selector.select():
                key.data()

    def _accept(self) -> None:
        """Fork a child for the next request, if there will be another one."""
        data, received, *_ = socket.recv_fds(self._control, 1, 2)
        if not data:
            self._selector.unregister(self._control)
            self._accepting = False
            return
        caller, output = socket.socket(fileno=received[0]), received[1]
        with caller.makefile() as lines:
            text = lines.readline()
        if not text.endswith("\n"):  # the caller was gone before it had sent the request
            caller.close()
            os.close(output)
            return
        server = os.getpid()
        process = os.fork()
        if process == 0:
            self._be_child(server, json.loads(text), output)
        os.close(output)
        self._sockets[process] = caller
        _tell(caller, {"process": process})
        self._selector.register(caller, selectors.EVENT_READ, lambda: os.kill(process, signal.SIGKILL))

    def _be_child(self, server: int, request: dict[str, Any], output: int) -> None:
        """Answer the request in the forked process, and end it."""
        killed_with_parent(server)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number in (1, 2):
            os.dup2(output, number)
        self._selector.close()
        os.close(output)
        for held in (self._control, self._woken, self._wake, *self._sockets.values()):
            held.close()
        os.environ.clear()
        os.environ.update(request["environment"])
        answer_request(request)
        sys.exit(0)

    def _reap(self) -> None:
        """Tell the callers of children that have ended how they ended, and what CPU time was used so far."""
        self._woken.recv(4096)
        for process, caller in list(self._sockets.items()):
            ended, status = os.waitpid(process, os.WNOHANG)
            if not ended:
                continue
            times = os.times()
            cpu_s = times.user + times.system + times.children_user + times.children_system
            self._selector.unregister(caller)
            _tell(caller, {"code": os.waitstatus_to_exitcode(status), "cpu_s": cpu_s})
            caller.close()
            del self._sockets[process]


def _tell(caller: socket.socket, content: Mapping[str, Any]) -> None:
    try:
        caller.sendall(json.dumps(content).encode() + b"\n")
    except OSError as error:  # its end shows that the caller is gone
        print(f"{content}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1])
