"""Run an ExecuTorch program on the CPU of the device. Requires only the package executorch."""

from __future__ import annotations

import platform
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

INPUTS: list[str] = []
OUTPUTS: list[str] = []


def open_model(model: str, backend: str = "") -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Open a program as a function from inputs by name to outputs by name; ``backend`` must be empty."""
    if backend:
        raise ValueError("XNNPACK is part of the ExecuTorch runtime: leave out --backend")
    import torch
    from executorch.runtime import Runtime

    method = Runtime.get().load_program(model).load_method("forward")

    def run(inputs: dict[str, Any]) -> dict[str, Any]:
        outputs = method.execute([torch.from_numpy(inputs[name].copy()) for name in INPUTS])
        return {name: tensor.numpy().copy() for name, tensor in zip(OUTPUTS, outputs, strict=True)}

    return run


def emulated() -> bool:
    """Whether this machine is an x86 PC, whose kernels are not those of a phone."""
    return platform.machine().lower() in ("x86_64", "amd64")


def versions() -> dict[str, str]:
    """The versions of the packages that ran the program."""
    return {name: version(name) for name in ("executorch", "torch", "numpy")}
