"""The smallest part of a failing graph that fails in the same way, by delta debugging over its nodes."""

from __future__ import annotations

import re
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from dovetail.encoding import Array
from dovetail.model.session import Mode, open_session, run_session
from dovetail.model.subset import subset_of
from dovetail.model.write import write
from dovetail.sweep.case import Case
from dovetail.sweep.fit_graph import FitRequest
from dovetail.sweep.outcome import Failure, Outcome
from dovetail.sweep.pattern import occurrences
from dovetail.trials.delta_debugging import smallest_failing

Fit = Callable[[FitRequest], Outcome]
MAX_CALLS = 60
_WORD, _OTHER = re.compile(r"[\w/.]+"), re.compile(r"[^\w/.]")


@dataclass(frozen=True, slots=True, eq=False)
class ShrunkGraph:
    """What is left of a graph, the samples of its inputs, and how many parts were tried.

    ``failure``: that of the part. ``is_minimal``: the part does not fail without any one of its nodes.
    """

    model: ir.Model
    samples: Mapping[str, Array]
    failure: Failure
    calls: int
    is_minimal: bool


def shrink(
    case: Case, failure: Failure, how: FitRequest, fit: Fit, known: Iterable[ir.Model] = (), max_calls: int = MAX_CALLS
) -> ShrunkGraph | None:
    """The smallest part that fails alike; None if the first build of the whole graph does not fail in this way.

    The inputs of a part get the values that their tensors have in the whole float graph. ``how``: the target and its
    options; the files in it are not used. ``known``: patterns that failed in other graphs, which are tried first, then
    the nodes that the failure's sentence names, with their neighbours.
    """
    model = ir.from_proto(case.model)
    values = {**case.samples, **_intermediate_values(case)}
    failures: dict[tuple[int, ...], Failure] = {}

    def fails(nodes: tuple[int, ...]) -> bool:
        part = subset_of(model, nodes)
        outcome = fit_part(part, _inputs(part, values), how, fit)
        similar = [found for found in outcome.failures if found.is_like(failure)]
        if similar:
            failures[nodes] = similar[0]
        return bool(similar)

    everything = tuple(range(len(model.graph)))
    if not fails(everything):
        return None
    guesses = [nodes for pattern in known for nodes in occurrences(model, pattern)]
    guesses += neighbourhoods(model, failure.cause)
    reduced = smallest_failing(everything, fails, max_calls=max_calls, try_first=guesses)
    part = subset_of(model, reduced.elements)
    found = failures[reduced.elements]
    return ShrunkGraph(part, _inputs(part, values), found, reduced.calls + 1, reduced.is_minimal)


def neighbourhoods(model: ir.Model, text: str, reach: int = 3) -> list[tuple[int, ...]]:
    """The nodes that a text names, by their own name or that of an output; the same with their neighbours, and so on.

    Nothing if the text names no node.
    """
    nodes = list(model.graph)
    words = set(_WORD.findall(text))

    def is_named(name: str | None) -> bool:
        return bool(name) and (name in words or (_OTHER.search(str(name)) is not None and str(name) in text))

    near = {node for node in nodes if is_named(node.name) or any(is_named(value.name) for value in node.outputs)}
    parts: list[tuple[int, ...]] = []
    for _ in range(reach if near else 0):
        parts.append(tuple(index for index, node in enumerate(nodes) if node in near))
        near |= {other for node in near for other in (*node.predecessors(), *node.successors())}
    return parts


def fit_part(model: ir.Model, samples: Mapping[str, Array], how: FitRequest, fit: Fit) -> Outcome:
    """Fit a model in memory and judge its first build."""
    with tempfile.TemporaryDirectory(prefix="dovetail-part-") as name:
        path, data = save_graph(model, samples, Path(name) / "part")
        return fit(replace(how, model=path, samples=data, build_only=True))


def save_graph(model: ir.Model, samples: Mapping[str, Array], path: Path) -> tuple[Path, Path]:
    """Write a model and its samples, as ``path`` with the suffixes ``.onnx`` and ``.npz``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = path.with_suffix(".npz")
    with zipfile.ZipFile(data, "w") as archive:  # not savez: a tensor may be called like one of its parameters
        for name, array in samples.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, np.asarray(array), allow_pickle=False)
    return write(model, path.with_suffix(".onnx"))[0], data


def _inputs(model: ir.Model, values: Mapping[str, Array]) -> dict[str, Array]:
    return {str(value.name): values[str(value.name)] for value in model.graph.inputs}


def _intermediate_values(case: Case) -> dict[str, Array]:
    """Every tensor that the float graph computes, one sample per row."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    known = {value.name for value in model.graph.output}
    model.graph.output.extend(value for value in model.graph.value_info if value.name not in known)
    session = open_session(model.SerializeToString(), Mode.FLOAT)
    rows = len(next(iter(case.samples.values())))
    runs = [run_session(session, {name: array[row] for name, array in case.samples.items()}) for row in range(rows)]
    return {name: np.stack([run[name] for run in runs]) for name in runs[0]}
