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
class FloatActivations:
    """The tensors of one sample in the float model: every one between segments, and the outputs."""

    tensors: Mapping[str, Array]
    outputs: Sample


@dataclass(frozen=True, slots=True)
class PartialRun:
    """One sample with some elements quantized, up to the segment ``last``: the tensors that it computed anew.

    ``quantized_outputs``: graph outputs after their own Q/DQ pair.
    """

    last: int
    changed: Mapping[str, Array]
    quantized_outputs: Mapping[str, Array]


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

    def float_activations(self, sample: Sample) -> FloatActivations:
        """Run the float model on one sample."""
        tensors = dict(sample)
        for run in self._floats:
            tensors |= _once(run, tensors)
        return FloatActivations(tensors, {name: tensors[name] for name in self._outputs})

    def outputs(self, exact: FloatActivations, on: Collection[int]) -> Sample:
        """The outputs for the sample of these float activations, with these elements quantized."""
        state = self.until(exact, on)
        return self.after(exact, state.last, state.changed, state.quantized_outputs)

    def until(self, exact: FloatActivations, on: Collection[int]) -> PartialRun:
        """Compute the segments up to the last one that reads one of these elements."""
        last = max((index for index, numbers in enumerate(self._switches) if not numbers.isdisjoint(on)), default=-1)
        changed: dict[str, Array] = {}
        quantized_outputs: dict[str, Array] = {}
        for index in range(last + 1):
            segment, numbers = self.segments[index], self._switches[index]
            if numbers.isdisjoint(on):
                self._advance(index, exact, changed)
                continue
            feed = {name: changed.get(name, exact.tensors[name]) for name in segment.inputs}
            results = _once(self._session(index), {**feed, **flags(on, numbers)})
            changed |= {name: results[name] for name in segment.outputs}
            quantized_outputs |= {
                name: results[made] for name in segment.outputs if (made := SWITCHED_OUTPUT.format(name)) in results
            }
        return PartialRun(last, changed, quantized_outputs)

    def after(
        self,
        exact: FloatActivations,
        last: int,
        changed: Mapping[str, Array],
        quantized_outputs: Mapping[str, Array] | None = None,
    ) -> Sample:
        """The outputs if all segments after ``last`` are computed in float, from these changed tensors."""
        tensors = dict(changed)
        for index in range(last + 1, len(self.segments)):
            self._advance(index, exact, tensors)
        return {
            **exact.outputs,
            **{name: tensors[name] for name in self._outputs if name in tensors},
            **(quantized_outputs or {}),
        }

    def read_after(self, last: int) -> frozenset[str]:
        """The tensors that segments after ``last`` read."""
        return frozenset(name for segment in self.segments[last + 1 :] for name in segment.inputs)

    def _advance(self, index: int, exact: FloatActivations, changed: dict[str, Array]) -> None:
        """Compute one segment in float, unless nothing that it reads differs from the float activations."""
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
