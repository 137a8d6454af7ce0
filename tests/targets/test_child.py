"""A vendor component that crashes, hangs, eats memory or raises takes down its child process, not the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dovetail.errors import UnfinishedError
from dovetail.targets import child
from dovetail.targets.child import DEFAULT_LIMITS, Limit, Limits, allow_children, run_child, stop_children
from tests.processes import is_running, wait_for


def answer(number: int) -> dict[str, int]:
    print("printed while working")
    return {"twice": 2 * number}


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def hang() -> None:
    print("about to hang", flush=True)
    time.sleep(60)


def leave() -> None:
    print("so long", flush=True)
    os._exit(7)


def refuse() -> None:
    raise RuntimeError("no kernel")


def eat() -> None:
    bytearray(4 << 30)


def write_pid_and_hang(file: str) -> None:
    Path(file).write_text(str(os.getpid()))
    time.sleep(60)


def read_input() -> dict[str, str]:
    return {"input": sys.stdin.read()}


def own_limits() -> dict[str, list[int]]:
    import resource

    return {"memory": list(resource.getrlimit(resource.RLIMIT_AS))}


def die_of_hunger() -> None:
    """As a C++ component does that cannot get memory."""
    print("terminate called after throwing an instance of 'std::bad_alloc'", file=sys.stderr, flush=True)
    os.abort()


HERE = "tests.targets.test_child"
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
NEEDS_SERVERS = pytest.mark.skipif(not child.HAS_SERVERS, reason="children are not forked on this system")
FORKS = [pytest.param(True, marks=NEEDS_SERVERS, id="forked"), pytest.param(False, id="started")]


@pytest.fixture(params=FORKS)
def forks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether children are forked from a server or started, each as a process of its own."""
    monkeypatch.setattr(child, "HAS_SERVERS", request.param)
    return bool(request.param)


def test_the_answer_comes_back_and_the_log_is_kept(forks: bool) -> None:
    result = run_child(f"{HERE}:answer", {"number": 21})
    assert result.answer == {"twice": 42}
    assert (result.error, result.finished, result.limit) == ("", True, None)
    assert "printed while working" in result.log


@pytest.mark.parametrize(
    ("name", "limits", "said", "limit"),
    [
        ("crash", DEFAULT_LIMITS, "the tool was killed by signal 11 (SIGSEGV)", None),
        ("hang", Limits(time_s=3.0), "the tool did not answer within 3 s and was stopped", Limit.TIME),
        ("leave", DEFAULT_LIMITS, "the tool ended with code 7 and no answer; its last words: so long", None),
        ("nowhere", DEFAULT_LIMITS, "has no attribute 'nowhere'", None),
        ("eat", Limits(memory_bytes=2 << 30), "the tool ran out of memory: the limit is 2048 MB", Limit.MEMORY),
        ("die_of_hunger", DEFAULT_LIMITS, "the tool ran out of memory: the limit is 16384 MB", Limit.MEMORY),
    ],
)
def test_what_did_not_come_to_its_end_is_said_in_one_sentence(
    name: str, limits: Limits, said: str, limit: Limit | None, forks: bool
) -> None:
    result = run_child(f"{HERE}:{name}", {}, who="the tool", limits=limits)
    assert (result.answer, result.finished, result.limit) == (None, False, limit)
    assert said in result.error


def test_what_a_component_raises_is_its_own_answer(forks: bool) -> None:
    result = run_child(f"{HERE}:refuse", {})
    assert (result.answer, result.error, result.finished) == (None, "RuntimeError: no kernel", True)


def test_what_was_printed_before_a_hang_is_kept(forks: bool) -> None:
    assert "about to hang" in run_child(f"{HERE}:hang", {}, limits=Limits(time_s=3.0)).log


def test_a_component_that_reads_its_input_finds_none(forks: bool) -> None:
    assert run_child(f"{HERE}:read_input", {}).answer == {"input": ""}


FORKING = "from dovetail.targets import child; child.HAS_SERVERS = {forks}"
PARENT = FORKING + "; child.run_child({function!r}, {{'file': {file!r}}})"
# The same without the kernel's help, as on systems other than Linux.
WATCHING = """
from dovetail.targets import child_main
child_main._COMMAND = (
    "import json, sys; s = json.loads(sys.argv[1]); sys.path[:] = s['path']; from {} import main;"
    "from dovetail.targets import child_main;"
    "child_main.ctypes.CDLL = lambda name: type('Libc', (), {{'prctl': staticmethod(lambda *_: -1)}}); main(s)"
)
"""


@ON_LINUX
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_child_ends_with_its_parent(tmp_path: Path, number: signal.Signals, forks: bool) -> None:
    file = tmp_path / "pid"
    source = PARENT.format(forks=forks, function=f"{HERE}:write_pid_and_hang", file=str(file))
    parent = subprocess.Popen([sys.executable, "-c", source])
    assert wait_for(lambda: file.exists() and file.read_text())
    pid = int(file.read_text())
    assert is_running(pid)
    parent.send_signal(number)
    parent.wait()
    assert wait_for(lambda: not is_running(pid), 10)


@ON_LINUX
def test_without_the_kernels_help_a_child_watches_its_parent(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    source = WATCHING + PARENT.format(forks=False, function=f"{HERE}:write_pid_and_hang", file=str(file))
    parent = subprocess.Popen([sys.executable, "-c", source])
    assert wait_for(lambda: file.exists() and file.read_text())
    pid = int(file.read_text())
    time.sleep(0.5)
    assert is_running(pid)
    parent.kill()
    parent.wait()
    assert wait_for(lambda: not is_running(pid), 10)


def test_stopping_children_ends_those_of_all_threads(tmp_path: Path, forks: bool) -> None:
    files = [tmp_path / str(number) for number in range(2)]
    start = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        results = [pool.submit(run_child, f"{HERE}:write_pid_and_hang", {"file": str(file)}) for file in files[:1]]
        assert wait_for(lambda: files[0].exists())
        stop_children()
        try:
            with pytest.raises(UnfinishedError, match="interrupted"):
                run_child(f"{HERE}:answer", {"number": 1})
        finally:
            allow_children()
    assert "was killed by signal 9 (SIGKILL)" in results[0].result().error
    assert time.monotonic() - start < 40
    assert run_child(f"{HERE}:answer", {"number": 1}).answer == {"twice": 2}


@pytest.mark.parametrize("ulimit", ["-v", "-Sv"])
def test_the_memory_limit_stays_within_that_of_the_shell(ulimit: str, forks: bool) -> None:
    """``ulimit -v`` sets a hard limit, which no process may raise."""
    pytest.importorskip("resource", reason="this system has no such limits")
    source = (
        f"{FORKING.format(forks=forks)}; from dovetail.targets.child import Limits, run_child\n"
        f"print(run_child('{HERE}:own_limits', {{}}).answer['memory'])\n"
        f"print(run_child('{HERE}:eat', {{}}, who='the tool', limits=Limits(memory_bytes=9 << 30)).error)\n"
        f"print(run_child('{HERE}:own_limits', {{}}, limits=Limits(memory_bytes=1 << 30)).answer['memory'])\n"
    )
    command = ["bash", "-c", f'ulimit {ulimit} 3000000; exec "$@"', "bash", sys.executable, "-c", source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    inherited, eaten, smaller = done.stdout.splitlines()
    assert inherited == "[3072000000, 3072000000]"
    assert eaten == "the tool ran out of memory: the limit is 2929 MB"
    assert smaller == "[1073741824, 1073741824]"
