"""Run float models in a child process first: a graph on which ONNX Runtime crashes must not take down this process."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir

from dovetail.calibrate.data import input_specs
from dovetail.errors import BackendError
from dovetail.model.write import write
from dovetail.targets.compile_in_child import CompileCall, compile_in_child, compile_session, model_inputs

_FUNCTION = "dovetail.model.try_session:try_in_child"


def require_no_crash(models: Sequence[Path | ir.Model], inputs_of: ir.Model, *, use_cache: bool = True) -> None:
    """Refuse models of which one takes down, or does not end in, a process that loads it and runs it once on zeros.

    An error that ONNX Runtime reports is left to the first use, which says where it is. ``inputs_of``: the model whose
    inputs all of them have.
    """
    inputs = {spec.name: [spec.dtype.name, list(spec.shape)] for spec in input_specs(inputs_of)}
    # A session of its own: these are not compilations of the run.
    with tempfile.TemporaryDirectory(prefix="dovetail-") as name, compile_session(use_cache=use_cache):
        folder = Path(name)
        for number, model in enumerate(models):
            path = model if isinstance(model, Path) else write(model, folder / f"{number}.onnx")[0]
            call = CompileCall(
                _FUNCTION,
                {"model": "model.onnx", "inputs": inputs},
                inputs=model_inputs(path),
                packages=(),
                who="ONNX Runtime",
            )
            result = compile_in_child(call, folder)
            if not result.finished:
                what = f"the float model {path.name!r}" if isinstance(model, Path) else "the rewritten float model"
                raise BackendError(
                    f"{what} cannot be run: {result.error}; find the operator by removing outputs from the model, and "
                    "write it with others"
                )
