"""What quantizing one tensor alone costs the operators that read it.

The SQNR of a tensor itself says little: if one channel is a hundred times larger than the others, it dominates the
signal, although the others carry the information. And after the tensor that loses it, every tensor is as bad. So each
operator is computed twice in the float graph, once with one of its inputs quantized, and its outputs are compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import onnx_ir as ir

from dovetail.backend import Sample
from dovetail.edge import Edge
from dovetail.encoding import QParams
from dovetail.model.edit import constant_of, forget_names, insert_copy, is_float, shape_of
from dovetail.model.observe import ObservedRun
from dovetail.model.session import Mode
from dovetail.numerics.metrics import Comparison
from dovetail.qdq.switch import with_pair
from dovetail.storage import Plan


def consumer_losses(model: ir.Model, plan: Plan, samples: Iterable[Sample], workdir: Path) -> dict[str, Comparison]:
    """Per quantized tensor, the output of the operator that loses most if only this tensor is quantized.

    Of tensors that share their scale (a group) only the one that loses most: they can only be kept together.
    """
    copied = model.clone()
    forget_names(copied.graph)
    copies = [copy for node in list(copied.graph) for copy in _copies(node, plan)]
    if not copies:
        return {}
    names = list(dict.fromkeys(name for _, exact, other in copies for name in (exact, other)))
    run = ObservedRun(copied, names, workdir, Mode.EXACT)  # Q/DQ pairs must stay where they are
    sums = dict.fromkeys(copies, Comparison())
    for sample in samples:
        outputs = dict(run.run(sample))
        for copy in copies:
            sums[copy] += Comparison.of(outputs[copy[1]], outputs[copy[2]])
    worst: dict[str, tuple[str, Comparison]] = {}
    for (tensor, _, _), comparison in sums.items():
        group = _group(plan, tensor)
        if not math.isnan(comparison.sqnr_db) and (group not in worst or comparison.sqnr_db < worst[group][1].sqnr_db):
            worst[group] = (tensor, comparison)
    return dict(worst.values())


def _group(plan: Plan, tensor: str) -> str:
    choice = plan.tensors.get(tensor)
    return tensor if choice is None or choice.group is None else choice.group


def _copies(node: ir.Node, plan: Plan) -> list[tuple[str, str, str]]:
    """Insert copies of an operator with one input quantized: the tensor, the output, and the output of the copy."""
    output = node.outputs[0]
    nested = any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values())
    if nested or len(node.outputs) != 1 or not is_float(output) or shape_of(output) is None:
        return []
    copies = []
    for index, value in enumerate(node.inputs):
        params = None if value is None or constant_of(value) is not None else _params(plan, node, index, value)
        if value is None or params is None:
            continue
        inputs = list(node.inputs)
        inputs[index] = with_pair(node, value, params)
        copies.append((value.name or "", output.name or "", insert_copy(node, node, inputs).name or ""))
    return copies


def _params(plan: Plan, node: ir.Node, index: int, value: ir.Value) -> QParams | None:
    """The quantization parameters with which an operator reads an activation; None if it is float."""
    choice = plan.edges.get(Edge(node.name or "", index)) or plan.tensors.get(value.name or "")
    return choice.storage if choice is not None and isinstance(choice.storage, QParams) else None
