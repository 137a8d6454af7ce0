"""What was compiled once is not compiled again; what may not be kept is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.targets import tool_call
from dovetail.targets.child import Limits
from dovetail.targets.child_sources import source_sha256
from dovetail.targets.tool_cache import user_cache
from dovetail.targets.tool_call import CallCount, Task, ToolCall, ToolSession, tool_session
from tests.targets.cached_calls import MADE, call, calls, compiled, files

pytestmark = pytest.mark.usefixtures("own_cache")


def test_the_second_call_is_not_run_and_gives_the_same(tmp_path: Path, session: ToolSession) -> None:
    first, second = (compiled(tmp_path, call(tmp_path), folder) for folder in ("a", "b"))
    assert first == second
    assert (first.answer, first.finished) == ({"characters": 3}, True)
    assert "compiling" in second.log
    assert files(tmp_path / "a") == files(tmp_path / "b") == MADE
    assert calls(tmp_path) == 1
    assert (session.counts[Task.COMPILE], session.not_stored) == (CallCount(1, 1), "")
    assert session.counts[Task.RUN] == CallCount(0, 0)


def test_what_is_changed_in_the_run_does_not_change_the_cache(tmp_path: Path) -> None:
    compiled(tmp_path, call(tmp_path), "a")
    (tmp_path / "a/out.txt").write_text("edited by the caller")
    compiled(tmp_path, call(tmp_path), "b")
    assert files(tmp_path / "b") == MADE


def test_earlier_outputs_are_replaced_and_other_files_stay(tmp_path: Path) -> None:
    (tmp_path / "run/extra").mkdir(parents=True)
    (tmp_path / "run/extra/other.txt").write_text("of the caller")
    (tmp_path / "run/out.txt").write_text("of another compilation")
    compiled(tmp_path, call(tmp_path))
    assert files(tmp_path / "run") == {**MADE, "extra/other.txt": "of the caller"}


def test_inputs_in_folders_are_not_outputs(tmp_path: Path) -> None:
    (tmp_path / "run/sub").mkdir(parents=True)
    (tmp_path / "run/sub/weights.bin").write_text("of the caller")
    same = call(tmp_path)
    inputs = {**same.inputs, "sub/weights.bin": tmp_path / "run/sub/weights.bin"}
    for _ in range(2):
        compiled(tmp_path, ToolCall(same.function, same.arguments, inputs, (), "the tool"))
        assert files(tmp_path / "run") == {**MADE, "sub/weights.bin": "of the caller"}


def test_another_input_argument_or_version_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled(tmp_path, call(tmp_path))
    compiled(tmp_path, call(tmp_path, text="abd"))
    compiled(tmp_path, call(tmp_path, suffix="!"))
    assert calls(tmp_path) == 3
    monkeypatch.setattr(tool_call, "_version", lambda name: "99")
    compiled(tmp_path, call(tmp_path))
    assert calls(tmp_path) == 4


def test_the_limits_and_the_callers_names_decide_nothing(tmp_path: Path) -> None:
    one = call(tmp_path)
    compiled(tmp_path, one)
    other = tmp_path / "other name"
    other.write_text("abc")
    same = ToolCall(one.function, one.arguments, {"in.txt": other}, (), "it", Limits(5.0, 1 << 30))
    compiled(tmp_path, same)
    assert calls(tmp_path) == 1


def test_a_refusal_is_kept_without_files_where_the_caller_knows_it_is_one(tmp_path: Path) -> None:
    one = call(tmp_path, "refuse")
    known = ToolCall(one.function, one.arguments, one.inputs, (), "the tool", is_final=lambda result: True)
    first, second = (compiled(tmp_path, known) for _ in range(2))
    assert first == second
    assert (first.answer, first.error) == (None, "RuntimeError: no kernel for abc")
    assert files(tmp_path / "run") == {}
    assert calls(tmp_path) == 1


def test_an_error_of_the_machine_is_not_kept_whatever_the_caller_thinks(tmp_path: Path) -> None:
    one = call(tmp_path, "full_disk")
    known = ToolCall(one.function, one.arguments, one.inputs, (), "the tool", is_final=lambda result: True)
    for _ in range(2):
        compiled(tmp_path, known)
    assert calls(tmp_path) == 2


@pytest.mark.parametrize(
    ("function", "limits"),
    [
        ("hang", Limits(time_s=2.0)),
        ("eat", Limits(memory_bytes=2 << 30)),
        ("crash", Limits()),
        ("full_disk", Limits()),
        ("refuse", Limits()),
    ],
)
def test_what_a_limit_a_crash_or_the_machine_ended_is_never_kept(function: str, limits: Limits, tmp_path: Path) -> None:
    one = call(tmp_path, function)
    limited = ToolCall(one.function, one.arguments, one.inputs, (), "the tool", limits)
    for _ in range(2):
        assert compiled(tmp_path, limited).answer is None
    assert calls(tmp_path) == 2
    assert user_cache().size() == (0, 0)


def test_without_the_cache_nothing_is_read_or_kept(tmp_path: Path) -> None:
    compiled(tmp_path, call(tmp_path))
    with tool_session(use_cache=False) as session:
        compiled(tmp_path, call(tmp_path))
        compiled(tmp_path, call(tmp_path, text="other"))
    assert (session.counts[Task.COMPILE], calls(tmp_path)) == (CallCount(2, 0), 3)
    assert user_cache().size()[0] == 1


def test_the_sources_of_a_child_are_its_module_and_what_that_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "vendorpack"
    package.mkdir()
    texts = {
        "__init__": "",
        "child": "def f():\n    from vendorpack import inner\n",
        "inner": "from dovetail.errors import InputError\n",
        "annotations": "",
        "unrelated": "",
    }
    texts["child"] += "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from vendorpack import annotations\n"
    for name, text in texts.items():
        (package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))

    def digest() -> str:
        return source_sha256("vendorpack.child")

    before = digest()
    for name in ("unrelated", "annotations"):
        (package / f"{name}.py").write_text("changed = 1\n")
        assert digest() == before
    for name in ("inner", "child", "__init__"):
        (package / f"{name}.py").write_text(texts[name] + "changed = 1\n")
        assert digest() != before
        (package / f"{name}.py").write_text(texts[name])
        assert digest() == before
