"""Lower plans in this process, so that executorch is imported once for all tests; programs are kept in the cache."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from dovetail.backend import ReadBack, Sample
from dovetail.errors import InputError
from dovetail.model.session import Mode, open_session, run_session
from dovetail.storage import Plan
from dovetail.target import Target
from dovetail.targets.child import ChildResult
from dovetail.targets.tool_call import ToolCall, call_tool, has_finished, model_inputs, remember
from dovetail.targets.xnnpack.install import PACKAGES
from dovetail.targets.xnnpack.lower import lower_in_child
from dovetail.targets.xnnpack.read_back import read_operator_list
from dovetail.targets.xnnpack.session import load_program

PROGRAM, CENSUS = "model.pte", "census.json"
# What is raised for a model that is not lowered; any other error is not kept.
REJECTIONS: dict[str, type[Exception]] = {
    "InputError": InputError,
    "RuntimeError": RuntimeError,
    "ValueError": ValueError,
}
# Not the function of a real run: what the lowering prints, which is kept with a result, is not recorded here.
_LOWER = f"{__name__}:lower_in_child"


@dataclass(frozen=True)
class Lowered:
    """A loaded program, its operators and what was read back."""

    emitted: Path
    program: Path
    census: dict[str, Any]
    read_back: ReadBack
    method: Any

    def run(self, sample: Sample) -> dict[str, np.ndarray]:
        import torch

        outputs = self.method.execute([torch.from_numpy(array) for array in sample.values()])
        names = [str(value.name) for value in ir.load(self.emitted).graph.outputs]
        return {name: np.array(tensor.numpy()) for name, tensor in zip(names, outputs, strict=True)}

    def simulate(self, sample: Sample) -> dict[str, np.ndarray]:
        return run_session(open_session(self.emitted, Mode.EXACT), sample)

    def kinds(self) -> list[str]:
        """Every operator with the types of its inputs and output."""
        return [
            f"{row['kind']} {' '.join(v['dtype'] for v in row['inputs'].values())} -> {row['output']['dtype']}"
            for row in self.census["operators"]
        ]


def lowered(model: ir.Model, plan: Plan, target: Target, folder: Path) -> Lowered:
    """Emit, lower, load and read back."""
    emitted = target.backend.emit(model, plan, folder)[0].path
    census = lower(emitted, folder)
    rows = read_operator_list(emitted, folder / CENSUS, plan)
    return Lowered(emitted, folder / PROGRAM, census, rows, load_program(folder / PROGRAM))


def lower(model: Path, folder: Path) -> dict[str, Any]:
    """Lower a file, and return the list of its operators."""
    names = {"program": PROGRAM, "census": CENSUS}
    call = ToolCall(_LOWER, {"model": "model.onnx", **names}, model_inputs(model), tuple(PACKAGES), "the lowering")
    if not has_finished(call):
        made = folder / "made"
        made.mkdir()
        remember(call, ChildResult(_lower(model, {key: made / name for key, name in names.items()}), "", ""), made)
    answer = call_tool(call, folder).answer or {}
    if rejection := answer.get("rejection"):
        raise REJECTIONS[rejection](answer["message"])
    census: dict[str, Any] = json.loads((folder / CENSUS).read_text())
    return census


def _lower(model: Path, files: dict[str, Path]) -> dict[str, str]:
    """Lower a file to these files, or return why it is rejected: the same file always is."""
    try:
        lower_in_child(str(model), **{key: str(path) for key, path in files.items()})
    except tuple(REJECTIONS.values()) as error:
        if type(error).__name__ not in REJECTIONS:
            raise
        return {"rejection": type(error).__name__, "message": str(error)}
    return {}
