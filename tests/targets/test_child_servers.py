"""Children are forked from a process that has done the imports; each is as fresh, and as closely watched, as others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import dovetail
from dovetail.clock import cpu_seconds
from dovetail.targets import child_servers
from dovetail.targets.child import Limits, run_child
from dovetail.targets.child_servers import HAS_SERVERS, SERVERS
from tests.processes import is_running, wait_for

pytestmark = pytest.mark.skipif(not HAS_SERVERS, reason="children are not forked on this system")

_CALLS = 0


def identify() -> dict[str, object]:
    """The process, its server, how often this was called in it, and a variable."""
    global _CALLS
    _CALLS += 1
    return {"process": os.getpid(), "server": os.getppid(), "calls": _CALLS, "variable": os.environ.get("MARK", "")}


def size_of(text: str) -> dict[str, int]:
    return {"size": len(text)}


def say_and_wait(text: str, seconds: float) -> dict[str, str]:
    print(text, flush=True)
    time.sleep(seconds)
    return {}


def say_and_wait_for(text: str, file: str) -> dict[str, str]:
    print(text, flush=True)
    while not Path(file).exists():
        time.sleep(0.02)
    return {}


def leave_a_process_behind(seconds: float) -> dict[str, int]:
    """It keeps the output open."""
    return {"process": subprocess.Popen(["sleep", str(seconds)]).pid}


def compute(seconds: float) -> dict[str, int]:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    return {}


HERE = "tests.targets.test_child_servers"


@pytest.fixture(autouse=True)
def _children_find_this_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parents[2]}{os.pathsep}{Path(dovetail.__file__).parents[1]}")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of a module ``own_tool`` that children import, and whose source a test writes."""
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "own_tool.py"


def identity() -> dict[str, object]:
    answer = run_child(f"{HERE}:identify", {}).answer
    assert answer is not None
    return dict(answer)


def test_each_call_is_a_fresh_process_of_one_server() -> None:
    first, second = identity(), identity()
    assert first["server"] == second["server"] != os.getpid()
    assert first["process"] != second["process"]
    assert (first["calls"], second["calls"]) == (1, 1)


def test_what_the_module_lists_is_imported_before_the_call(module: Path) -> None:
    module.write_text(
        "import sys\nIMPORTS = ('colorsys', 'sndhdr.nothing')\n"
        "def loaded():\n    return {'names': sorted({'colorsys', 'chunk'} & set(sys.modules))}\n"
    )
    assert run_child("own_tool:loaded", {}).answer == {"names": ["colorsys"]}


def test_a_changed_environment_reaches_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity()
    monkeypatch.setenv("MARK", "changed")
    after = identity()
    assert (before["variable"], after["variable"]) == ("", "changed")
    assert before["server"] != after["server"]  # whose libraries may have read the variable
    assert wait_for(lambda: not is_running(int(str(before["server"]))))


def test_a_changed_source_is_what_runs(module: Path) -> None:
    for number in (1, 22):
        module.write_text(f"def value():\n    return {{'number': {number}}}\n")
        assert run_child("own_tool:value", {}).answer == {"number": number}


def test_a_server_that_was_killed_is_replaced() -> None:
    os.kill(int(str(identity()["server"])), signal.SIGKILL)
    answers = [run_child(f"{HERE}:identify", {}) for _ in range(2)]
    assert answers[-1].answer is not None
    assert answers[0].answer is not None or "was killed by signal 9" in answers[0].error  # it had not ended yet


def test_a_server_that_is_killed_during_a_call_ends_it() -> None:
    server = int(str(identity()["server"]))
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(run_child, f"{HERE}:say_and_wait", {"text": "working", "seconds": 60})
        time.sleep(0.5)
        os.kill(server, signal.SIGKILL)
        result = call.result(timeout=20)
    assert (result.answer, result.finished) == (None, False)
    assert "was killed by signal 9 (SIGKILL)" in result.error
    assert "working" in result.log


def test_a_module_that_crashes_when_it_is_imported_is_reported_with_its_last_words(module: Path) -> None:
    module.write_text("import os\nos.write(2, b'no such device\\n')\nos._exit(3)\ndef f():\n    return {}\n")
    result = run_child("own_tool:f", {}, who="the tool")
    assert (result.error, result.finished) == (
        "the tool ended with code 3 and no answer; its last words: no such device",
        False,
    )


def test_a_module_that_does_not_finish_importing_is_stopped(module: Path) -> None:
    module.write_text("import time\ntime.sleep(60)\ndef f():\n    return {}\n")
    server = SERVERS.of("own_tool")
    result = run_child("own_tool:f", {}, who="the tool", limits=Limits(time_s=1.0))
    assert result.error == "the tool did not answer within 1 s and was stopped"
    assert wait_for(server.has_ended)


def test_large_arguments_and_much_output_arrive() -> None:
    assert run_child(f"{HERE}:size_of", {"text": "x" * 5_000_000}).answer == {"size": 5_000_000}
    assert len(run_child(f"{HERE}:say_and_wait", {"text": "y" * 3_000_000, "seconds": 0}).log) == 3_000_001


def test_calls_at_the_same_time_do_not_wait_for_each_other(tmp_path: Path) -> None:
    file = tmp_path / "quick has ended"
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(run_child, f"{HERE}:say_and_wait_for", {"text": "slow", "file": str(file)})
        quick = run_child(f"{HERE}:say_and_wait", {"text": "quick", "seconds": 0})
        assert not slow.done()
        file.touch()
        assert (quick.log, slow.result(timeout=30).log) == ("quick\n", "slow\n")


def test_a_process_that_a_child_leaves_behind_does_not_hold_up_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_servers, "_LAST_S", 0.5)
    start = time.monotonic()
    result = run_child(f"{HERE}:leave_a_process_behind", {"seconds": 60})
    assert result.answer is not None
    assert time.monotonic() - start < 30
    os.kill(result.answer["process"], signal.SIGKILL)


def test_the_cpu_time_of_children_counts_once() -> None:
    identity()
    before = cpu_seconds()
    run_child(f"{HERE}:compute", {"seconds": 1.0})
    counted = cpu_seconds() - before
    assert 1.0 <= counted < 3.0
    SERVERS.end()  # from now on the system counts it
    assert abs(cpu_seconds() - before - counted) < 0.5


def test_a_call_that_is_left_early_ends_its_child(tmp_path: Path) -> None:
    """As by Ctrl-C in a program that is not ended by it."""
    file = tmp_path / "pid"
    source = f"""
import os, signal, threading, time
from pathlib import Path
from dovetail.targets.child import run_child
def interrupt():
    while not Path({str(file)!r}).exists():
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
try:
    run_child("tests.targets.test_child:write_pid_and_hang", {{"file": {str(file)!r}}})
except KeyboardInterrupt:
    print("interrupted", flush=True)
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, preexec_fn=_heed_interrupts)
    try:
        assert process.stdout is not None
        start = time.monotonic()
        assert process.stdout.readline() == b"interrupted\n"
        assert wait_for(lambda: not is_running(int(file.read_text())), 10)
        assert time.monotonic() - start < 50  # it was ended, and did not end by itself
    finally:
        process.kill()
        process.communicate()


def _heed_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background process may ignore it


@pytest.mark.parametrize("last", ["", "os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_servers_end_with_the_program(last: str) -> None:
    source = f"import os; from {HERE} import identity; print(identity()['server'], flush=True); {last}"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert wait_for(lambda: not is_running(int(done.stdout)), 10), done.stderr


def test_a_process_that_was_forked_has_servers_of_its_own() -> None:
    server = identity()["server"]
    read_end, write_end = os.pipe()
    process = os.fork()
    if process == 0:
        os.write(write_end, str(identity()["server"]).encode())
        os._exit(0)
    os.waitpid(process, 0)
    assert int(os.read(read_end, 100)) not in (0, server)
    assert identity()["server"] == server
    for end in (read_end, write_end):
        os.close(end)


def test_servers_are_started_by_several_threads_at_once_only_once() -> None:
    SERVERS.end()
    barrier = threading.Barrier(4)

    def call(_: int) -> object:
        barrier.wait()
        return identity()["server"]

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(call, range(4)))) == 1
