"""A torch module as an ONNX model for any target; the module is left exactly as it was."""

from __future__ import annotations

import copy
import inspect
import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import onnx

from dovetail.errors import InputError

_INSTALL = "pip install 'dovetail-fit[torch]'"
_OPSET = 20


def from_torch(module: Any, example: Any, *, opset: int = _OPSET) -> onnx.ModelProto:
    """Export an ``nn.Module`` or a Hugging Face vision model, for inference, in float32.

    ``example``: what the module is called with: a tensor, several in a tuple, or by name in a dict; its shapes are the
    shapes of the model. A copy is exported: mode, dtypes, hooks and gradients of the module stay as they are.
    """
    for package in ("torch", "onnxscript"):
        if find_spec(package) is None:
            raise InputError(f"{package} is not installed: {_INSTALL}")
    import torch

    if not isinstance(module, torch.nn.Module):
        raise InputError(f"from_torch takes a module, not {type(module).__name__}: load the model first")
    names, inputs = _inputs(module, example)
    plain = _copied(module)
    with torch.no_grad():
        outputs = list(_tensors(plain(**dict(zip(names, inputs, strict=True)))))
    if not outputs:
        raise InputError(f"{type(module).__name__} gives no tensor")
    wrapped = _by_position(plain, names)
    with tempfile.TemporaryDirectory(prefix="dovetail-") as folder, _quiet(), torch.no_grad():
        path = Path(folder) / "model.onnx"
        try:
            torch.onnx.export(
                wrapped,
                tuple(inputs),
                str(path),
                dynamo=True,
                opset_version=opset,
                input_names=names,
                output_names=[name for name, _ in outputs],
                external_data=False,
                verbose=False,
            )
        except Exception as error:
            said = " ".join(str(error).split())[:300]
            raise InputError(f"torch cannot export {type(module).__name__}: {said}") from error
        return onnx.load(path)


def _inputs(module: Any, example: Any) -> tuple[list[str], list[Any]]:
    """The names and tensors that the module is called with, reals in float32."""
    import torch

    parameters = [
        name
        for name, one in inspect.signature(module.forward).parameters.items()
        if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    ]
    if isinstance(example, Mapping):
        given = dict(example)
    else:
        listed = example if isinstance(example, Sequence) else (example,)
        if len(listed) > len(parameters):
            raise InputError(f"{type(module).__name__} takes {len(parameters)} inputs, {len(listed)} were given")
        given = dict(zip(parameters, listed, strict=False))
    if not given:
        raise InputError("the example has no input")
    tensors = [torch.as_tensor(value).detach().clone() for value in given.values()]
    return list(given), [t.float() if t.is_floating_point() else t for t in tensors]


def _copied(module: Any) -> Any:
    """A copy for inference in float32."""
    try:
        return copy.deepcopy(module).float().eval()
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise InputError(f"{type(module).__name__} cannot be copied, and is not changed: {error}") from error


def _by_position(module: Any, names: list[str]) -> Any:
    """A module that takes tensors in order and gives tensors in order, whatever the other one gives them in."""
    import torch

    class Plain(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inside = module

        def forward(self, *inputs: Any) -> tuple[Any, ...]:
            outputs = self.inside(**dict(zip(names, inputs, strict=True)))
            return tuple(tensor for _, tensor in _tensors(outputs))

    return Plain().eval()


def _tensors(outputs: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every tensor of an output with a name: the key in a dict or a Hugging Face output, else a number."""
    import torch

    if isinstance(outputs, torch.Tensor):
        yield prefix or "output", outputs
    elif isinstance(outputs, Mapping):
        for key, value in outputs.items():
            yield from _tensors(value, f"{prefix}_{key}" if prefix else str(key))
    elif isinstance(outputs, Sequence) and not isinstance(outputs, str):
        for number, value in enumerate(outputs):
            yield from _tensors(value, f"{prefix or 'output'}_{number}")


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter's words, kept back, and its logger put back as it was."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)
