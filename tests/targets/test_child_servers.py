"""Children are forked from a process that has done the imports; each is as fresh, and as closely watched, as others."""

from __future__ import annotations

import ast
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dovetail.clock import counting, cpu_seconds
from dovetail.targets import child
from dovetail.targets.child import Limit, Limits, allow_children, run_child, stop_children
from dovetail.targets.child_servers import HAS_SERVERS, SERVERS
from tests.processes import calls_of, children_of, is_running, serves, wait_for

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


def leave_a_process_behind(seconds: float, how: str) -> dict[str, int]:
    """It keeps the output open, and, if forked, whatever else this process has open."""
    if how == "spawn":
        return {"process": subprocess.Popen(["sleep", str(seconds)]).pid}
    process = os.fork()
    if process == 0:
        time.sleep(seconds)
        os._exit(0)
    return {"process": process}


def compute_and_hang(seconds: float) -> dict[str, int]:
    compute(seconds)
    time.sleep(60)
    return {}


def surroundings() -> dict[str, object]:
    """What a process takes over from the one that started it."""
    umask = os.umask(0)
    return {
        "umask": umask,
        "cores": sorted(os.sched_getaffinity(0)),
        "files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "folder": os.getcwd(),
    }


def compute(seconds: float) -> dict[str, int]:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    return {}


HERE = "tests.targets.test_child_servers"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of a module ``own_tool`` that children import, and whose source a test writes."""
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


def test_what_is_named_is_imported_before_the_call_and_shared(module: Path) -> None:
    module.write_text(
        "import os, sys\nprepared_by = 0\n"
        "def prepare():\n    global prepared_by\n    prepared_by = os.getpid()\n"
        "def loaded():\n    names = sorted({'colorsys', 'chunk'} & set(sys.modules))\n"
        "    return {'names': names, 'server': os.getppid(), 'prepared_by': prepared_by}\n"
    )
    imports = ("own_tool", HERE, "colorsys", "sndhdr.nothing", "own_tool:prepare")
    answer = run_child("own_tool:loaded", {}, imports=imports).answer
    assert answer is not None
    assert answer["names"] == ["colorsys"]
    assert answer["prepared_by"] == answer["server"]
    other = run_child(f"{HERE}:identify", {}, imports=imports).answer
    assert other is not None
    assert other["server"] == answer["server"] != identity()["server"]


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


def test_imports_that_leave_a_thread_behind_are_done_by_every_call(module: Path) -> None:
    """A forked child would not have the thread, and could wait for it forever."""
    module.write_text(
        "import os, threading, time\nimported_by = os.getpid()\n"
        "thread = threading.Thread(target=time.sleep, args=(600,), daemon=True)\nthread.start()\n"
        "def f():\n    os.write(1, os.environ['MARK'].encode())\n"
        "    return {'is_own': imported_by == os.getpid(), 'runs': thread.is_alive(), 'folder': os.getcwd()}\n"
    )
    os.environ["MARK"] = "marked"
    try:
        results = [run_child("own_tool:f", {}, folder=module.parent) for _ in range(2)]
    finally:
        del os.environ["MARK"]
    for result in results:
        assert result.answer == {"is_own": True, "runs": True, "folder": str(module.parent)}
        assert result.log == "marked"


def test_what_imports_print_is_no_last_word_of_a_call(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    module.write_text(
        "import os, sys\nprint('imported')\n"
        "def f():\n    print('device lost')\n    sys.stdout.flush()\n    os._exit(3)\n"
    )
    result = run_child("own_tool:f", {}, who="the tool")
    assert result.error == "the tool ended with code 3 and no answer; its last words: device lost"


@pytest.mark.parametrize(("name", "fails"), [("fork", 3), ("pidfd_open", 2)])  # a fork before asks for threads
def test_a_process_that_cannot_be_started_ends_no_other_call(
    name: str, fails: int, module: Path, tmp_path: Path
) -> None:
    file = tmp_path / "go on"
    module.write_text(
        f"import os, time\nreal, calls = os.{name}, []\n"
        "def limited(*arguments):\n    calls.append(1)\n"
        f"    if len(calls) == {fails}:\n"
        "        raise BlockingIOError(11, 'Resource temporarily unavailable')\n"
        f"    return real(*arguments)\nos.{name} = limited\n"
        "def f(file):\n    while file and not os.path.exists(file):\n        time.sleep(0.02)\n    return {}\n"
    )
    with ThreadPoolExecutor(1) as pool:
        patient = pool.submit(run_child, "own_tool:f", {"file": str(file)})
        assert wait_for(lambda: calls_of(os.getpid(), "own_tool"))
        refused = run_child("own_tool:f", {"file": ""}, who="the tool")
        why = f"{name} failed: [Errno 11] Resource temporarily unavailable"
        assert refused.error.endswith(f"the child process could not be started ({why})")
        assert run_child("own_tool:f", {"file": ""}).answer == {}
        file.touch()
        assert patient.result(timeout=30).answer == {}


@pytest.mark.parametrize("name", ["os.pidfd_open", "signal.pidfd_send_signal"])
def test_without_descriptors_of_processes_children_are_started(name: str) -> None:
    """Python can be built without them."""
    source = f"""
import os, signal
del {name}
from dovetail.targets import child_servers
from {HERE} import identity
assert not child_servers.HAS_SERVERS
print(identity()["server"] == os.getpid())
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr


def test_a_call_goes_on_when_its_server_is_replaced_while_it_imports(
    module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module.write_text(SLOW_IMPORT.format(seconds=1.5))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(run_child, "own_tool:f", {"text": "abc"})
        assert wait_for(lambda: servers_of("own_tool"))
        time.sleep(0.3)
        monkeypatch.setenv("MARK", "changed")
        assert run_child("own_tool:f", {"text": "ab"}).answer == {"size": 2}
        assert first.result(timeout=60).answer == {"size": 3}


def test_no_call_goes_to_a_server_that_is_being_ended() -> None:
    for _ in range(5):
        identity()
        stop_children()
        allow_children()
        assert identity()


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


SLOW_IMPORT = "import time\ntime.sleep({seconds})\ndef f(text=''):\n    return {{'size': len(text)}}\n"


@pytest.mark.parametrize("size", [1, 5_000_000])
def test_a_module_that_does_not_finish_importing_is_stopped(size: int, module: Path) -> None:
    module.write_text(SLOW_IMPORT.format(seconds=60))
    start, before = time.monotonic(), servers_of("own_tool")
    result = run_child("own_tool:f", {"text": "x" * size}, who="the tool", limits=Limits(time_s=0.7))
    assert time.monotonic() - start < 20
    assert result.error == "the tool did not answer within 0.7 s and was stopped"
    assert wait_for(lambda: set(servers_of("own_tool")) <= set(before))


def servers_of(name: str) -> list[int]:
    return [server for server in children_of(os.getpid()) if serves(server, name)]


def test_a_call_that_is_out_of_time_while_its_server_imports_ends_no_other(module: Path) -> None:
    module.write_text(SLOW_IMPORT.format(seconds=2))
    with ThreadPoolExecutor(1) as pool:
        patient = pool.submit(run_child, "own_tool:f", {"text": "abc"})
        time.sleep(0.5)
        assert run_child("own_tool:f", {}, limits=Limits(time_s=0.2)).limit is Limit.TIME
        assert patient.result(timeout=60).answer == {"size": 3}


def test_a_very_short_limit_ends_no_other_call(tmp_path: Path) -> None:
    identity()
    file = tmp_path / "go on"
    with ThreadPoolExecutor(1) as pool:
        patient = pool.submit(run_child, f"{HERE}:say_and_wait_for", {"text": "", "file": str(file)})
        for _ in range(5):
            assert run_child(f"{HERE}:identify", {}, limits=Limits(time_s=0.0005)).limit is Limit.TIME
        file.touch()
        assert patient.result(timeout=30).answer == {}


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


@pytest.mark.parametrize("how", ["spawn", "fork"])
def test_a_process_that_a_child_leaves_behind_does_not_hold_up_its_answer(how: str) -> None:
    start = time.monotonic()
    result = run_child(f"{HERE}:leave_a_process_behind", {"seconds": 60, "how": how})
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


def test_the_cpu_time_of_a_call_that_is_stopped_counts_at_once() -> None:
    identity()
    before = cpu_seconds()
    assert run_child(f"{HERE}:compute_and_hang", {"seconds": 0.3}, limits=Limits(time_s=2.0)).limit is Limit.TIME
    assert cpu_seconds() - before > 0.25  # in ticks of 10 ms


def test_a_child_has_the_limits_and_the_cores_that_its_caller_has_now(monkeypatch: pytest.MonkeyPatch) -> None:
    source = f"""
import os, resource, sys
sys.path[0] = os.getcwd()  # not the folder that it will work in
from {HERE} import run_child
print(run_child("{HERE}:surroundings", {{}}).answer)
os.umask(0o77)
os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})
resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
os.nice(3)
os.chdir("/")
print(run_child("{HERE}:surroundings", {{}}).answer)
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    first, second = (ast.literal_eval(line) for line in done.stdout.splitlines())
    assert second == {
        "umask": 0o77,
        "cores": first["cores"][:1],
        "files": 200,
        "nice": first["nice"] + 3,
        "folder": "/",
    }


@pytest.mark.parametrize("forks", [True, False])
def test_a_file_in_the_working_folder_is_not_taken_for_a_module(
    forks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("selectors", "json", "ctypes"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong file')\n")
    monkeypatch.setattr(child, "HAS_SERVERS", forks)
    monkeypatch.setenv("MARK", str(forks))  # a server of its own
    monkeypatch.chdir(tmp_path)
    assert run_child(f"{HERE}:size_of", {"text": "abc"}).answer == {"size": 3}


def test_a_call_works_where_sigchld_is_blocked() -> None:
    SERVERS.end()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    try:
        assert run_child(f"{HERE}:size_of", {"text": "abc"}, limits=Limits(time_s=20)).answer == {"size": 3}
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        SERVERS.end()


@pytest.mark.parametrize("is_ignored", [True, False])
def test_ctrl_c_ends_calls_and_no_server(is_ignored: bool, tmp_path: Path) -> None:
    """A terminal sends it to all processes of the group; those that were started to ignore it go on."""
    file = tmp_path / "go on"
    source = f"""
import os, signal, threading, time
from pathlib import Path
from {HERE} import identity, run_child
server = identity()["server"]
signal.signal(signal.SIGINT, signal.SIG_IGN)
def interrupt():
    time.sleep(0.5)
    os.killpg(0, signal.SIGINT)
    Path({str(file)!r}).touch()
threading.Thread(target=interrupt).start()
result = run_child("{HERE}:say_and_wait_for", {{"text": "", "file": {str(file)!r}}})
print(result.error or "ended by itself", identity()["server"] == server)
"""
    heed = _ignore_interrupts if is_ignored else _heed_interrupts
    command = [sys.executable, "-c", source]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, preexec_fn=heed, start_new_session=True
    )
    error = f"{HERE}:say_and_wait_for was killed by signal 2 (SIGINT)"
    assert done.stdout.strip() == f"{'ended by itself' if is_ignored else error} True"


def test_a_server_that_imports_ends_with_its_program(module: Path) -> None:
    module.write_text(SLOW_IMPORT.format(seconds=60))
    source = "from dovetail.targets.child import run_child; run_child('own_tool:f', {})"
    parent = subprocess.Popen([sys.executable, "-c", source])
    assert wait_for(lambda: [server for server in children_of(parent.pid) if serves(server, "own_tool")])
    (server,) = children_of(parent.pid)
    time.sleep(0.5)
    parent.kill()
    parent.wait()
    assert wait_for(lambda: not is_running(server), 10)


def test_calls_leave_nothing_open() -> None:
    server = int(str(identity()["server"]))
    folders = [Path(f"/proc/{number}/fd") for number in (os.getpid(), server)]
    before = [len(list(folder.iterdir())) for folder in folders]
    for _ in range(20):
        identity()
    # The server closes what belongs to a call after it has told the caller how the call ended.
    assert wait_for(lambda: all(len(list(f.iterdir())) <= n for f, n in zip(folders, before, strict=True)), 10)
    assert wait_for(lambda: not list(children_of(server)), 10)


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


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


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


def test_a_process_that_was_forked_counts_time_that_another_thread_was_counting() -> None:
    with ThreadPoolExecutor(1) as pool, counting():
        process = pool.submit(_fork_that_counts).result(timeout=60)
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def _fork_that_counts() -> int:
    process = os.fork()
    if process == 0:
        signal.alarm(20)
        cpu_seconds()
        os._exit(0)
    return process


def test_servers_are_started_by_several_threads_at_once_only_once() -> None:
    SERVERS.end()
    barrier = threading.Barrier(4)

    def call(_: int) -> object:
        barrier.wait()
        return identity()["server"]

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(call, range(4)))) == 1
