"""Networks as their users have them: exported from torch with random weights, then fitted with the real compiler."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dovetail
from bench import vit_export
from dovetail.encoding import Array
from dovetail.finding import Status
from dovetail.report.result import Result


class Outputs(nn.Module):
    """A transformers model from one image tensor to the named fields of its answer."""

    def __init__(self, model: nn.Module, fields: Sequence[str], argument: str = "pixel_values") -> None:
        super().__init__()
        self.model, self.fields, self.argument = model, tuple(fields), argument

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        answer = self.model(**{self.argument: x})
        return tuple(getattr(answer, field) for field in self.fields)


def export(model: nn.Module, shape: tuple[int, ...], path: Path, *, dynamo: bool = True) -> Path:
    """A network with one input ``x``, as ONNX; the same numbers whatever was made before."""
    torch.manual_seed(0)
    return vit_export.export(model, shape, path, dynamo=dynamo)


def shared_exports(
    factory: pytest.TempPathFactory, names: Sequence[str], make: Callable[[Path], Mapping[str, Path]]
) -> dict[str, Path]:
    """Files that several test files need, made once in a test session, whichever of its processes is first."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "exports"
    folder.mkdir(exist_ok=True)
    found = {name: folder / f"{name}.onnx" for name in names}
    if not all(path.exists() for path in found.values()):
        for name, path in make(factory.mktemp("export")).items():
            path.replace(found[name])
    return found


def shared_export(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Path]) -> Path:
    """One such file."""
    return shared_exports(factory, [name], lambda folder: {name: make(folder / "model.onnx")})[name]


def keep_sizes(model: nn.Module) -> nn.Module:
    """Random weights that make what comes out as large as what goes in; norms as they begin."""
    torch.manual_seed(1)
    with torch.no_grad():
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if isinstance(module, nn.LayerNorm | nn.BatchNorm2d):
                    parameter.fill_(float(name == "weight"))
                elif parameter.ndim > 1:
                    linear = isinstance(module, nn.Conv2d | nn.Linear)
                    size = parameter[0].numel() if linear else parameter.shape[-1]
                    parameter.copy_(torch.randn(parameter.shape) / math.sqrt(size))
    return model


def images(shape: tuple[int, ...], count: int = 4) -> dict[str, Array]:
    """Smooth random pictures, which calibrate better than noise."""
    rng = np.random.default_rng(0)
    coarse = rng.standard_normal((count, *shape[1:-2], shape[-2] // 8, shape[-1] // 8)).astype(np.float32)
    fine = coarse.repeat(8, axis=-2).repeat(8, axis=-1)
    return {"x": (fine + 0.1 * rng.standard_normal(fine.shape)).astype(np.float32)}


def fitted(path: Path, shape: tuple[int, ...], run: Path, target: str, precision: str, **options: Any) -> Result:
    """The whole line on one network; the width of second operands is searched elsewhere, and takes time."""
    chosen = {"operand_bits": "8", **options}
    return dovetail.fit(path, target=target, precision=precision, calibration=images(shape), output=run, **chosen)


def assert_as_planned(result: Result) -> None:
    """Compiled without a CPU node (the session forbids them), and every planned tensor is as planned."""
    for name in ("normalized", "compiled", "fidelity"):
        assert result.verdicts[name].status is Status.PASS, (name, result.verdicts[name].reason)
    assert all(row.outcome in ("matched", "absorbed") for row in result.read_back)
