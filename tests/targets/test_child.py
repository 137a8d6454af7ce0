"""A vendor component that crashes, hangs, eats memory or raises takes down its child process, not the run."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from dovetail.targets.child import DEFAULT_LIMITS, Limit, Limits, run_child


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


def die_of_hunger() -> None:
    """As a C++ component does that cannot get memory."""
    print("terminate called after throwing an instance of 'std::bad_alloc'", file=sys.stderr, flush=True)
    os.abort()


HERE = "tests.targets.test_child"


@pytest.fixture(autouse=True)
def _children_find_this_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


def test_the_answer_comes_back_and_the_log_is_kept() -> None:
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
    name: str, limits: Limits, said: str, limit: Limit | None
) -> None:
    result = run_child(f"{HERE}:{name}", {}, who="the tool", limits=limits)
    assert (result.answer, result.finished, result.limit) == (None, False, limit)
    assert said in result.error


def test_what_a_component_raises_is_its_own_answer() -> None:
    result = run_child(f"{HERE}:refuse", {})
    assert (result.answer, result.error, result.finished) == (None, "RuntimeError: no kernel", True)


def test_what_was_printed_before_a_hang_is_kept() -> None:
    assert "about to hang" in run_child(f"{HERE}:hang", {}, limits=Limits(time_s=3.0)).log
