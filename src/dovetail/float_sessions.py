"""Run float models in a child process first: a graph on which ONNX Runtime crashes must not take down this process."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir

from dovetail.calibrate.data import input_specs
from dovetail.errors import BackendError
from dovetail.model.try_session import MARK
from dovetail.model.write import write
from dovetail.targets.child import run_child
from dovetail.targets.tool_call import ToolCall, has_finished, model_inputs, remember

_FUNCTION = "dovetail.model.try_session:try_in_child"


def require_no_crash(models: Sequence[Path | ir.Model], inputs_of: ir.Model) -> None:
    """Refuse models of which one takes down, or does not end in, a process that loads it and runs it once on zeros.

    An error that ONNX Runtime reports is left to the first use, which says where it is. ``inputs_of``: the model whose
    inputs all of them have. That a model did not crash is kept in the cache.
    """
    inputs = {spec.name: [spec.dtype.name, list(spec.shape)] for spec in input_specs(inputs_of)}
    with tempfile.TemporaryDirectory(prefix="dovetail-") as folder:
        paths = {
            str(
                model.absolute() if isinstance(model, Path) else write(model, Path(folder) / f"{number}.onnx")[0]
            ): model
            for number, model in enumerate(models)
        }
        call = ToolCall(_FUNCTION, {"inputs": inputs}, _files(list(paths)), ("onnxruntime",), "ONNX Runtime")
        if has_finished(call):
            return
        result = run_child(_FUNCTION, {"models": list(paths), "inputs": inputs}, who="ONNX Runtime")
        remember(call, result)
    if result.finished:
        return
    last = result.log.rpartition(MARK)[2].partition("\n")[0]
    model = paths.get(last)
    what = f"the float model {model.name!r}" if isinstance(model, Path) else "the rewritten float model"
    raise BackendError(
        f"{what} cannot be run: {result.error}; find the operator by removing outputs from the model, and write it "
        "with others"
    )


def _files(models: Sequence[str]) -> dict[str, Path]:
    """The files of the models, with their weights, by names that do not depend on where they are."""
    files: dict[str, Path] = {}
    for number, model in enumerate(models):
        files |= model_inputs(Path(model), f"{number}/model.onnx")
    return files
