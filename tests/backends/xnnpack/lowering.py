"""Lower plans in this process, so that executorch is imported once for all tests."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from dovetail.backend import ReadBack, Sample
from dovetail.model.session import Mode, open_session, run_session
from dovetail.storage import Plan
from dovetail.target import Target
from dovetail.targets.xnnpack.census import PlacementRecord, list_operators
from dovetail.targets.xnnpack.lower import lower
from dovetail.targets.xnnpack.read_back import read_operator_list
from dovetail.targets.xnnpack.session import load_program


@dataclass(frozen=True)
class Lowered:
    """A loaded program, its placement, its operators and what was read back."""

    emitted: Path
    program: Path
    placement: PlacementRecord
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
    program, census = folder / "model.pte", folder / "census.json"
    placement = lower(ir.load(emitted), program)
    method = load_program(program)
    operators = list_operators(program, placement)
    census.write_text(json.dumps(operators))
    return Lowered(emitted, program, placement, operators, read_operator_list(emitted, census, plan), method)
