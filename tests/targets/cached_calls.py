"""Calls whose results are cached, for tests of the compile cache."""

from __future__ import annotations

from pathlib import Path

from dovetail.targets import tool_call
from dovetail.targets.child import ChildResult
from dovetail.targets.tool_call import ToolCall

FUNCTIONS = "tests.targets.tool_functions"
MADE = {"out.txt": "ABC", "extra/list.txt": "one"}


def calls(tmp_path: Path) -> int:
    path = tmp_path / "calls"
    return len(path.read_text().splitlines()) if path.exists() else 0


def call(tmp_path: Path, function: str = "upper", text: str = "abc", **arguments: str) -> ToolCall:
    source = tmp_path / "caller's name.txt"
    source.write_text(text)
    known = {"source": "in.txt", "output": "out.txt"} if function == "upper" else {"source": "in.txt"}
    return ToolCall(f"{FUNCTIONS}:{function}", {**known, **arguments}, {"in.txt": source}, (), "the tool")


def compiled(tmp_path: Path, one: ToolCall, folder: str = "run") -> ChildResult:
    (tmp_path / folder).mkdir(exist_ok=True)
    return tool_call.call_tool(one, tmp_path / folder)


def files(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}
