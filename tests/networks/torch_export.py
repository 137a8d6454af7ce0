"""A torch module as an ONNX file, with random weights that are worth exporting."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

OPSET = 18


class Outputs(nn.Module):
    """A transformers model from one image tensor to the named fields of its answer."""

    def __init__(self, model: nn.Module, fields: Sequence[str], argument: str = "pixel_values") -> None:
        super().__init__()
        self.model, self.fields, self.argument = model, tuple(fields), argument

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        answer = self.model(**{self.argument: x})
        return tuple(getattr(answer, field) for field in self.fields)


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


def export(model: nn.Module, shape: tuple[int, ...], path: Path, *, dynamo: bool, opset: int = OPSET) -> None:
    """A network with one input ``x``, as ONNX."""
    model = model.eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # fresh biases are zero, which exporters take out
                parameter.add_(0.02 * torch.randn(parameter.shape))
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        example = (torch.randn(shape),)
        if not dynamo:
            torch.onnx.export(model, example, str(path), dynamo=False, opset_version=opset, input_names=["x"])
            return
        program = torch.onnx.export(model, example, dynamo=True, opset_version=opset, input_names=["x"], verbose=False)
    if program is None:
        raise RuntimeError("the exporter returned no program")
    program.save(path)


def export_seeded(make: Callable[[], nn.Module], shape: tuple[int, ...], path: Path, *, dynamo: bool = True) -> None:
    """The same weights whatever was made before."""
    torch.manual_seed(0)
    model = make()
    torch.manual_seed(0)
    export(model, shape, path, dynamo=dynamo)
