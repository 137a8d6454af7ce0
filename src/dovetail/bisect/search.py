"""Find the smallest part of a model that fails on a target as the whole model does, and the changes that fix it."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from queue import LifoQueue

import onnx_ir as ir

from dovetail.bisect.judge_given import judge_given
from dovetail.bisect.parts import DividedModel
from dovetail.clock import Reporter, silent
from dovetail.encoding import Array
from dovetail.errors import BackendError
from dovetail.sweep.fit_graph import FitRequest, fit_graph
from dovetail.sweep.fit_process import FitProcess
from dovetail.sweep.outcome import Failure, FailureKind, Outcome
from dovetail.sweep.shrink import neighbourhoods, save_graph
from dovetail.trials.delta_debugging import smallest_failing

# How many parts are compiled at most, and how long one may take.
MAX_PARTS = 60
TIME_LIMIT_S = 1800.0
# What can be looked for. A compiler that crashes or does not end also refuses the model.
PREDICATES = {
    "refused": (FailureKind.REFUSED, FailureKind.UNFINISHED),
    "wrong": (FailureKind.WRONG,),
    "changed": (FailureKind.CHANGED,),
}


@dataclass(frozen=True, slots=True, eq=False)
class FailingPart:
    """The smallest part that was found.

    ``whole``: the failure of the whole model; ``failure``: that of the part. ``nodes``: operator and name in the
    caller's file. ``tried``: how many parts were judged, the whole model included. ``is_minimal``: without any one of
    its nodes it does not fail.
    """

    model: ir.Model
    samples: Mapping[str, Array]
    nodes: tuple[tuple[str, str], ...]
    whole: Failure
    failure: Failure
    tried: int
    is_minimal: bool


class Judges:
    """Processes that judge parts, one for each core; every part is judged in one of them."""

    def __init__(self, quantized: bool, count: int | None = None) -> None:
        self.count = count or os.cpu_count() or 1
        self._free: LifoQueue[FitProcess] = LifoQueue()  # the last one first: none is started without need
        self._stack = ExitStack()
        for _ in range(self.count):
            process = FitProcess(TIME_LIMIT_S, judge_given if quantized else fit_graph)
            self._free.put(self._stack.enter_context(process))

    def __enter__(self) -> Judges:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def __call__(self, model: ir.Model, samples: Mapping[str, Array], how: FitRequest) -> Outcome:
        process = self._free.get()
        try:
            with tempfile.TemporaryDirectory(prefix="dovetail-part-") as name:
                path, data = save_graph(model, samples, Path(name) / "part")
                return process(replace(how, model=path, samples=data))
        finally:
            self._free.put(process)


def failing_part(
    divided: DividedModel,
    how: FitRequest,
    judges: Judges,
    kinds: Collection[FailureKind],
    report: Reporter = silent,
    max_parts: int = MAX_PARTS,
) -> FailingPart | None:
    """The smallest part that fails as the whole model does; None if that does not fail.

    ``kinds``: the failures that are looked for; of several the whole model has, the first.
    """
    found: dict[tuple[int, ...], Failure] = {}
    count = itertools.count(1)

    def failures_of(elements: tuple[int, ...]) -> tuple[Failure, ...]:
        report("bisect", next(count), None)
        part = divided.part(elements)
        return () if part is None else judges(*part, how).failures

    report("whole", 0, None)
    failures = failures_of(divided.elements)
    whole = next((failure for failure in failures if failure.kind in kinds), None)
    if whole is None:
        _require_judged(failures, kinds)
        return None
    found[divided.elements] = whole

    def fails(elements: tuple[int, ...]) -> bool:
        failure = next((failure for failure in failures_of(elements) if whole.is_like(failure)), None)
        if failure is not None:
            found[elements] = failure
        return failure is not None

    named = [tuple(set(part) & set(divided.elements)) for part in neighbourhoods(divided.model, whole.cause)]
    reduced = smallest_failing(
        divided.elements, fails, max_calls=max_parts, try_first=filter(None, named), at_once=judges.count
    )
    elements, extra = _connected(divided, reduced.elements, fails)
    part = divided.part(elements)
    if part is None:
        raise ValueError("a part without values for its inputs was judged")
    return FailingPart(
        *part,
        tuple(divided.described(elements)),
        whole,
        found[elements],
        1 + reduced.calls + extra,
        reduced.is_minimal and not extra,
    )


def _connected(
    divided: DividedModel, elements: tuple[int, ...], fails: Callable[[tuple[int, ...]], bool]
) -> tuple[tuple[int, ...], int]:
    """One connected part that fails alone, if the found one is not connected; and how many were tried."""
    parts = divided.connected(elements)
    if len(parts) == 1:
        return elements, 0
    for tried, part in enumerate(parts, 1):
        if fails(part):
            return part, tried
    return elements, len(parts)


def _require_judged(failures: Collection[Failure], kinds: Collection[FailureKind]) -> None:
    """Raise an error if a model failed in a way that hides whether it fails as asked."""
    hiding = {FailureKind.UNEXPECTED, FailureKind.UNFINISHED, FailureKind.REFUSED, FailureKind.NOT_EQUAL}
    if FailureKind.CHANGED in kinds:
        hiding.add(FailureKind.NOT_FOUND)
    for failure in failures:
        if failure.kind in hiding:
            raise BackendError(f"the model could not be judged, because it is {failure.kind}: {failure.cause}")
