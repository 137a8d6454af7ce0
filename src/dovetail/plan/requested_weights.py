"""The encoding that is requested for the weight of every layer, before the graph is rewritten for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from dovetail.edge import Edge
from dovetail.encoding import Encoding, QParams
from dovetail.model.edit import constant_of, input_axis, shape_of
from dovetail.op_support import OpTable, Precision
from dovetail.plan.blocks import WEIGHT
from dovetail.plan.constraints import Unit, build_problem
from dovetail.plan.imported_qparams import ImportedQParams
from dovetail.plan.pins import imported_pins, kept_units
from dovetail.plan.request import Keep
from dovetail.storage import Plan

# The block size of a layer that a plan has in blocks already: every number of channels is a multiple of it.
_ANY_SIZE = 1


@dataclass(frozen=True, slots=True, eq=False)
class RequestedWeights:
    """A precision, and what makes layers differ from it: ``--keep``, imported qparams, or the caller's own plan."""

    precision: Precision
    keeps: tuple[Keep, ...] = ()
    imported: ImportedQParams | None = None
    plan: Plan | None = None

    @property
    def has_blocks(self) -> bool:
        """Whether any layer may be requested in blocks."""
        weights = [self.precision.weight, *(keep.precision.weight for keep in self.keeps)]
        if self.imported is not None:
            weights += [params.encoding for several in self.imported.constants.values() for params in several]
        return any(weight.is_blocked for weight in weights) or _has_blocks(self.plan)

    def block_sizes(self, model: ir.Model, table: OpTable) -> dict[str, int]:
        """The block sizes of the layers that are requested in blocks which the target supports, by the node's name.

        A plan has the names of the rewritten graph: a layer that it does not have was rewritten.
        """
        if self.plan is not None:
            edges = self.plan.edges if _has_blocks(self.plan) else None
            return {
                node.name or "": _ANY_SIZE
                for node in model.graph
                if edges is not None and _has_weight(node) and Edge(node.name or "", WEIGHT) not in edges
            }
        return {
            node.name or "": weight.block_size
            for unit, weight in self._weights(model, table)
            for node in unit.nodes
            if weight.is_blocked and _has_weight(node) and not _why_not(node, weight, table)
        }

    def _weights(self, model: ir.Model, table: OpTable) -> Iterator[tuple[Unit, Encoding]]:
        """Every unit with the encoding that is requested for its weight."""
        problem = build_problem(model, table)
        pins = {} if self.imported is None else imported_pins(problem, self.imported, self.precision).units
        precisions = {name: pin.precision for name, pin in pins.items()}
        for keep in self.keeps:
            precisions.update(dict.fromkeys((unit.name for unit in kept_units(problem, keep)), keep.precision))
        for unit in problem.units:
            yield unit, precisions.get(unit.name, self.precision).weight


def _why_not(node: ir.Node, weight: Encoding, table: OpTable) -> str:
    """Why the target does not support these blocks for a layer, however it is written; empty if it does."""
    shape = shape_of(node.inputs[WEIGHT]) or ()
    channels = shape[input_axis(node, len(shape))] if len(shape) > 1 else 0
    return table.why_no_block_size(weight) or table.why_not_over(weight, channels)


def _has_weight(node: ir.Node) -> bool:
    return len(node.inputs) > WEIGHT and constant_of(node.inputs[WEIGHT]) is not None


def _has_blocks(plan: Plan | None) -> bool:
    storages = () if plan is None else (choice.storage for choice in plan.edges.values())
    return any(isinstance(storage, QParams) and storage.encoding.is_blocked for storage in storages)
