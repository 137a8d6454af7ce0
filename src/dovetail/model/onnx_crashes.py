"""Refuse a model on which onnx's C++ code crashes, found out in a child process.

The onnx package checks, infers shapes and converts opsets in C++, which crashes on some graphs (seen with onnx 1.23.2:
``tests/model/test_onnx_crashes.py``). The child costs 25 ms.
"""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

import onnx
import onnx.version_converter

from dovetail.errors import BackendError, InputError
from dovetail.model import onnx_child

# Far above what real models need: 30 000 nodes take 1 s and 100 MB.
TIME_LIMIT_S = 120
MEMORY_LIMIT_BYTES = 8 << 30


# What onnx's C++ code raises: its own errors, which are RuntimeErrors or ValueErrors, and those of the C++ library.
REPORTED = (
    onnx.checker.ValidationError,
    onnx.shape_inference.InferenceError,
    onnx.version_converter.ConvertError,
    RuntimeError,
    ValueError,
    IndexError,
    OverflowError,
)


class Step(StrEnum):
    """What onnx does with a model, by the name that messages use."""

    CONVERT = "version converter"
    CHECK = "checker"
    INFER = "shape inference"
    INFER_WITHOUT_VALUES = "shape inference without values"


# What has passed in this process: the step, and the hash of the model.
_PASSED: set[tuple[Step, bytes]] = set()


def refuse_crash(models: Mapping[Step, onnx.ModelProto]) -> None:
    """Run each step on its model in one child process; refuse a model on which a step crashes or does not end.

    An error that onnx reports is left to the call in this process, which says where it is. A model that has passed is
    not tried again.
    """
    contents = {step: proto.SerializeToString() for step, proto in models.items()}
    keys = {(step, hashlib.sha256(content).digest()) for step, content in contents.items()}
    if not keys <= _PASSED:
        _refuse_crash(contents)
        _PASSED.update(keys)


def _refuse_crash(contents: Mapping[Step, bytes]) -> None:
    limits = [str(MEMORY_LIMIT_BYTES), str(TIME_LIMIT_S)]
    calls = [f"{step}={len(content)}" for step, content in contents.items()]
    command = [sys.executable, "-I", "-S", onnx_child.__file__, _extension(), *limits, *calls]
    given = b"".join(contents.values())
    try:
        # The limit of CPU time ends it earlier, unless it waits for something.
        done = subprocess.run(command, input=given, capture_output=True, check=False, timeout=10 * TIME_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise InputError(f"the model cannot be read: onnx did not finish within {error.timeout:.0f} s") from error
    if done.returncode == 0:
        return
    begun = done.stdout.decode().split("\n")[:-1]
    if not begun:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise BackendError(f"onnx could not be started in a child process: {last}")
    if done.returncode == onnx_child.OUT_OF_MEMORY:
        how = f"ran out of memory (limit {MEMORY_LIMIT_BYTES >> 30} GB): a size in the model is too large"
    elif done.returncode == -getattr(signal, "SIGXCPU", 0):
        how = f"did not finish within {TIME_LIMIT_S} s"
    else:
        how = f"crashed (exit code {done.returncode}); export the model again, or remove nodes to find the one at fault"
    raise InputError(f"the model cannot be read: the {begun[-1]} of onnx {onnx.__version__} {how}")


def _extension() -> str:
    return str(Path(onnx.onnx_cpp2py_export.__file__))
