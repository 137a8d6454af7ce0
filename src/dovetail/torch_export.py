"""Exporting a torch module to an ONNX model for any target; the module itself is not changed."""

from __future__ import annotations

import copy
import inspect
import io
import logging
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from dovetail.errors import InputError

_INSTALL = "pip install 'dovetail-fit[torch]'"
_OPSET = 20
# Marks an argument that is a tensor.
_TENSOR = object()


def from_torch(module: Any, example: Any, *, opset: int = _OPSET) -> onnx.ModelProto:
    """Export an ``nn.Module`` or a Hugging Face vision model, for inference, in float32.

    ``example``: the arguments of the module: a tensor, several in a tuple, or a dict by name. Its shapes become the
    shapes of the model; arguments that are not tensors become constants. A copy is exported: mode, dtypes, hooks and
    gradients of the module do not change.
    """
    for package in ("torch", "onnxscript"):
        if find_spec(package) is None:
            raise InputError(f"{package} is not installed: {_INSTALL}")
    import torch

    if not isinstance(module, torch.nn.Module):
        raise InputError(f"from_torch requires a torch.nn.Module, not {type(module).__name__}: load the model first")
    kind, call = type(module).__name__, _call(module, example)
    wrapped = _by_position(_copied(module), call)
    with tempfile.TemporaryDirectory(prefix="dovetail-") as folder, _quiet(), torch.no_grad():
        path = Path(folder) / "model.onnx"
        try:
            outputs = [name for name, _ in _tensors(wrapped.called(call.tensors))]
        except Exception as error:  # the caller's own code may raise anything
            raise InputError(f"{kind} cannot be called with the example: {_short(error)}") from error
        if not outputs:
            raise InputError(f"{kind} returns no tensor")
        try:
            torch.onnx.export(
                wrapped,
                call.tensors,
                str(path),
                dynamo=True,
                opset_version=opset,
                input_names=list(call.names),
                output_names=_distinct(outputs, call.names),
                external_data=False,
                verbose=False,
            )
        except Exception as error:
            raise InputError(f"torch cannot export {kind}: {_short(error)}") from error
        return onnx.load(path)


@dataclass(frozen=True, slots=True)
class _Call:
    """How a module is called: names and tensors of its inputs, and the arguments with ``_TENSOR`` for each tensor."""

    names: tuple[str, ...]
    tensors: tuple[Any, ...]
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]

    def filled(self, tensors: Iterable[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with tensors in their places."""
        remaining = iter(tensors)
        arguments = tuple(next(remaining) if value is _TENSOR else value for value in self.arguments)
        return arguments, {key: next(remaining) if value is _TENSOR else value for key, value in self.keywords.items()}


def _call(module: Any, example: Any) -> _Call:
    """Return the call that an example describes, floats in float32; only tensors and arrays are inputs."""
    import torch

    named = dict(example) if isinstance(example, Mapping) else {}
    positional = () if isinstance(example, Mapping) else example if isinstance(example, tuple | list) else (example,)
    parameters = _positions(module, len(positional))
    if len(positional) > len(parameters):
        raise InputError(f"{type(module).__name__} takes {len(parameters)} inputs, {len(positional)} were given")
    names, tensors = [], []
    for name, value in (*zip(parameters, positional, strict=False), *named.items()):
        if isinstance(value, torch.Tensor | np.ndarray):
            tensor = torch.as_tensor(value).detach().clone()
            names.append(name)
            tensors.append(tensor.float() if tensor.is_floating_point() else tensor)
    if not names:
        raise InputError(
            "from_torch: the example inputs contain no tensor; pass at least one torch.Tensor or NumPy array"
        )

    def marked(value: Any) -> Any:
        return _TENSOR if isinstance(value, torch.Tensor | np.ndarray) else value

    keywords = {name: marked(value) for name, value in named.items()}
    return _Call(tuple(names), tuple(tensors), tuple(map(marked, positional)), keywords)


def _positions(module: Any, count: int) -> list[str]:
    """Return the names of a module's positional parameters; those of a ``*args`` are numbered."""
    names = []
    for name, parameter in inspect.signature(module.forward).parameters.items():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(name)
        elif parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{name}_{number}" for number in range(count - len(names))]
    return names


def _distinct(outputs: list[str], inputs: Iterable[str]) -> list[str]:
    """Return unique names of outputs, none of which is also the name of an input."""
    taken, names = set(inputs), []
    for name in outputs:
        while name in taken:
            name += "_output"
        taken.add(name)
        names.append(name)
    return names


def _short(error: BaseException) -> str:
    """Return the original error on one line: exporters wrap it in others."""
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _copied(module: Any) -> Any:
    """Return a copy for inference in float32."""
    try:
        return copy.deepcopy(module).float().eval()
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise InputError(f"{type(module).__name__} cannot be copied for export: {error}") from error


def _by_position(module: Any, call: _Call) -> Any:
    """Wrap a module so that it takes a flat list of tensors and returns one."""
    import torch

    class Plain(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inside = module

        def called(self, inputs: tuple[Any, ...]) -> Any:
            arguments, keywords = call.filled(inputs)
            return self.inside(*arguments, **keywords)

        def forward(self, *inputs: Any) -> tuple[Any, ...]:
            return tuple(tensor for _, tensor in _tensors(self.called(inputs)))

    return Plain().eval()


def _tensors(outputs: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every tensor of an output with a name: the key in a dict or a Hugging Face output, else a number."""
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
    """Suppress the exporter's output and warnings; the loggers are restored afterwards."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
