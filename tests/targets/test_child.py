"""A vendor component that crashes, hangs, eats memory or raises takes down its child process, not the run."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from dovetail.targets.child import run_child


def answer(number: int) -> dict[str, int]:
    print("printed while working")
    return {"twice": 2 * number}


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def hang() -> None:
    print("about to hang", flush=True)
    time.sleep(60)


def leave() -> None:
    os._exit(7)


def refuse() -> None:
    raise RuntimeError("no kernel")


def eat() -> None:
    bytearray(4 << 30)


HERE = "tests.targets.test_child"


@pytest.fixture(autouse=True)
def _children_find_this_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


def test_the_answer_comes_back_and_the_log_is_kept() -> None:
    result = run_child(f"{HERE}:answer", {"number": 21})
    assert result.answer == {"twice": 42}
    assert result.error == ""
    assert "printed while working" in result.log


@pytest.mark.parametrize(
    ("name", "limits", "said"),
    [
        ("crash", {}, "killed by signal 11"),
        ("hang", {"time_limit_s": 3.0}, "did not answer within 3 s and was stopped"),
        ("leave", {}, "ended with code 7 and no answer"),
        ("refuse", {}, "RuntimeError: no kernel"),
        ("eat", {"memory_limit_bytes": 2 << 30}, "MemoryError"),
    ],
)
def test_what_goes_wrong_is_said_in_one_sentence(name: str, limits: dict[str, float], said: str) -> None:
    result = run_child(f"{HERE}:{name}", {}, **limits)  # type: ignore[arg-type]
    assert result.answer is None
    assert said in result.error


def test_what_was_printed_before_a_hang_is_kept() -> None:
    assert "about to hang" in run_child(f"{HERE}:hang", {}, time_limit_s=3.0).log
