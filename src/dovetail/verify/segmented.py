"""A float model in segments, in which any part of a plan is switched on: only what depends on it is computed again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from dovetail.backend import Sample
from dovetail.encoding import Array
from dovetail.model.segments import segment_models, segments_of
from dovetail.model.session import Mode
from dovetail.plan.elements import Element
from dovetail.qdq.switch_elements import SWITCHED_OUTPUT, ElementSwitches, flags
from dovetail.storage import Plan
from dovetail.verify.run import SessionRun

# Nodes of one segment, and the most segments: a session takes some 20 ms to open, and a change inside a segment
# computes all of it.
_NODES, _MOST_SEGMENTS = 11, 48


@dataclass(frozen=True, slots=True)
class FloatPass:
    """One sample through the float model: every tensor between segments, and the outputs."""

    tensors: Mapping[str, Array]
    outputs: Sample


@dataclass(frozen=True, slots=True)
class QuantizedPass:
    """The same with some elements quantized, up to the segment ``last``: the tensors that it computed anew.

    ``shown``: what the caller sees of outputs that are quantized themselves.
    """

    last: int
    changed: Mapping[str, Array]
    shown: Mapping[str, Array]


class SegmentedSimulation:
    """Runs a float model with any set of elements of a plan, by number, quantized."""

    def __init__(self, model: ir.Model, plan: Plan, elements: Sequence[Element], workdir: Path) -> None:
        self._workdir = workdir
        tensors = {name: number for number, element in enumerate(elements) for name in element.tensors}
        edges = {edge: number for number, element in enumerate(elements) for edge in element.edges}
        self.segments = segments_of(model, min(max(1, len(model.graph) // _NODES), _MOST_SEGMENTS))
        self._outputs = tuple(value.name or "" for value in model.graph.outputs)
        self._inputs = frozenset(value.name or "" for value in model.graph.inputs)
        self._models = segment_models(model, self.segments)
        self._floats = [SessionRun(part, Mode.FLOAT, workdir) for part in self._models]
        # The elements that are read in each segment, or that are outputs of it which the caller sees.
        self._switches = [ElementSwitches(part, plan, tensors, edges).insert(self._outputs) for part in self._models]
        self._switched: dict[int, SessionRun] = {}

    def float_pass(self, sample: Sample) -> FloatPass:
        """Run the float model on one sample."""
        tensors = dict(sample)
        for run in self._floats:
            tensors |= _once(run, tensors)
        return FloatPass(tensors, {name: tensors[name] for name in self._outputs})

    def outputs(self, exact: FloatPass, on: Collection[int]) -> Sample:
        """The outputs for the sample of a float pass, with these elements quantized."""
        state = self.until(exact, on)
        return self.after(exact, state.last, state.changed, state.shown)

    def until(self, exact: FloatPass, on: Collection[int]) -> QuantizedPass:
        """Compute the segments up to the last one that reads one of these elements."""
        last = max((index for index, numbers in enumerate(self._switches) if not numbers.isdisjoint(on)), default=-1)
        changed: dict[str, Array] = {}
        shown: dict[str, Array] = {}
        for index in range(last + 1):
            segment, numbers = self.segments[index], self._switches[index]
            if numbers.isdisjoint(on):
                self._advance(index, exact, changed)
                continue
            feed = {name: changed.get(name, exact.tensors[name]) for name in segment.inputs}
            results = _once(self._session(index), {**feed, **flags(on, numbers)})
            changed |= {name: results[name] for name in segment.outputs}
            shown |= {
                name: results[made] for name in segment.outputs if (made := SWITCHED_OUTPUT.format(name)) in results
            }
        return QuantizedPass(last, changed, shown)

    def after(
        self, exact: FloatPass, last: int, changed: Mapping[str, Array], shown: Mapping[str, Array] | None = None
    ) -> Sample:
        """The outputs if all segments behind ``last`` are computed in float, from these changed tensors."""
        tensors = dict(changed)
        for index in range(last + 1, len(self.segments)):
            self._advance(index, exact, tensors)
        return {**exact.outputs, **{name: tensors[name] for name in self._outputs if name in tensors}, **(shown or {})}

    def read_after(self, last: int) -> frozenset[str]:
        """The tensors that segments behind ``last`` read."""
        return frozenset(name for segment in self.segments[last + 1 :] for name in segment.inputs)

    def _advance(self, index: int, exact: FloatPass, changed: dict[str, Array]) -> None:
        """Compute one segment in float, unless nothing that it reads differs from the float pass."""
        segment = self.segments[index]
        if not changed.keys().isdisjoint(segment.inputs):
            feed = {name: changed.get(name, exact.tensors[name]) for name in segment.inputs}
            changed |= _once(self._floats[index], feed)

    def _session(self, index: int) -> SessionRun:
        """The session of a segment with switches, opened when it is first needed."""
        if index not in self._switched:
            self._switched[index] = SessionRun(self._models[index], Mode.EXACT, self._workdir)
        return self._switched[index]


def _once(run: SessionRun, feed: Mapping[str, Array]) -> Sample:
    (outputs,) = run([dict(feed)])
    return outputs
