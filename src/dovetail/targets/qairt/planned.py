"""A plan as it is given to the converter: the graph, its entries, its parts, and what is known about the ways."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from dovetail.encodings.records import TensorEncoding
from dovetail.storage import Plan
from dovetail.targets.qairt.call import ConverterCall
from dovetail.targets.qairt.coloring import Domain, domains
from dovetail.targets.qairt.export import Exported, exported, integers_only, one_storage_per_constant
from dovetail.targets.qairt.options import QairtFacts
from dovetail.targets.qairt.parts import ModelPart, cut
from dovetail.targets.qairt.ways import FALLBACK_CALL, Way, WayName, Ways, explicit_call, ways_out


@dataclass(frozen=True, slots=True, eq=False)
class PlannedConversion:
    """``parts``: of the way ``split``; empty if the graph must not be changed."""

    model: ir.Model
    of_node: Mapping[str, Domain]
    export: Exported
    parts: tuple[ModelPart, ...]
    ways: Ways

    def taken(self, facts: QairtFacts) -> Way:
        """The way that the caller chose, or the best one."""
        return self.ways.named(WayName(facts.strategy)) if facts.strategy else self.ways.ranked[0]

    def entries(self, way: WayName) -> Mapping[str, TensorEncoding]:
        """The entries of the encodings that are written for a way."""
        return self.export.entries if way is WayName.EXPLICIT else integers_only(self.export.entries)

    def call(self, way: WayName) -> ConverterCall:
        """How the script of a way calls the converter."""
        return explicit_call(self.export) if way is WayName.EXPLICIT else FALLBACK_CALL


def planned_conversion(facts: QairtFacts, model: ir.Model, plan: Plan) -> PlannedConversion:
    """The conversion of a planned graph for one SDK."""
    model = one_storage_per_constant(model, plan)
    of_node, export = domains(model, plan), exported(model, plan)
    parts = () if facts.keep_graph else cut(model, of_node)
    return PlannedConversion(model, of_node, export, parts, ways_out(model, plan, export, facts, parts))
