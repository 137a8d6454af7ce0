"""What tests let a child process compile: every call leaves a line in the file that COMPILE_CALLS names."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

CALLS = "COMPILE_CALLS"


def _called() -> None:
    with Path(os.environ[CALLS]).open("a") as stream:
        stream.write("called\n")


def upper(source: str, output: str, suffix: str = "") -> dict[str, Any]:
    """Write the input in capitals, beside a file in a folder."""
    _called()
    print("compiling")
    text = Path(source).read_text()
    Path(output).write_text(text.upper() + suffix)
    Path("extra").mkdir()
    Path("extra/list.txt").write_text("one")
    return {"characters": len(text)}


def refuse(source: str) -> dict[str, Any]:
    _called()
    Path("half.bin").write_text("half")
    raise RuntimeError(f"no kernel for {Path(source).read_text()}")


def full_disk(source: str) -> dict[str, Any]:
    _called()
    raise OSError(28, "No space left on device")


def crash(source: str) -> dict[str, Any]:
    _called()
    os.kill(os.getpid(), signal.SIGSEGV)
    return {}


def hang(source: str) -> dict[str, Any]:
    _called()
    time.sleep(60)
    return {}


def eat(source: str) -> dict[str, Any]:
    _called()
    return {"bytes": len(bytearray(4 << 30))}
