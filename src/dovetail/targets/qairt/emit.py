"""Write what a customer of one SDK needs: models, encodings, scripts and the prediction, for every way out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir

from dovetail.backend import Artifact
from dovetail.document import to_builtins
from dovetail.encodings.records import TensorEncoding
from dovetail.model.write import write, write_whole
from dovetail.storage import Plan
from dovetail.targets.qairt.call import ConverterCall
from dovetail.targets.qairt.coloring import Domain, domains
from dovetail.targets.qairt.commands import SCRIPT, Part, configurations, inputs_of, script
from dovetail.targets.qairt.export import (
    Exported,
    by_original_name,
    encodings_file,
    exported,
    integers_only,
    one_storage_per_constant,
    part_entries,
    version_for,
)
from dovetail.targets.qairt.options import QairtFacts
from dovetail.targets.qairt.parts import ModelPart, cut
from dovetail.targets.qairt.predict import PredictedTensor
from dovetail.targets.qairt.ways import FALLBACK_CALL, WayName, Ways, explicit_call, ways_out
from dovetail.targets.qnn_htp.target import emit as emit_qdq_model

FOLDER = "qairt"
MODEL, ENCODINGS = "model", "encodings.json"
WAYS, PREDICTION, MANIFEST = "ways.json", "prediction.json", "manifest.json"
_NOT_CHECKED = "a prediction from public reports and documentation about the SDK; nothing here was checked with it"


def emit(facts: QairtFacts, model: ir.Model, plan: Plan, folder: Path) -> tuple[Artifact, ...]:
    """Write the QDQ model, which is the simulation, and a folder for Qualcomm's own converters."""
    artifacts = emit_qdq_model(model, plan, folder)
    model = one_storage_per_constant(model, plan)
    out = folder / FOLDER
    out.mkdir()
    of_node, export = domains(model, plan), exported(model, plan)
    parts = () if facts.keep_graph else cut(model, of_node)
    ways = ways_out(model, plan, export, facts, parts)
    paths = [*_whole(facts, model, export, out)]
    if parts:
        simulated = cut(ir.load(artifacts[0].path), of_node)
        paths += _split(facts, model, parts, simulated, plan, export.entries, out / WayName.SPLIT)
    paths.append(_write(out / WAYS, json.dumps(_ways(facts, ways), indent=1)))
    paths.append(_write(out / PREDICTION, json.dumps(_predictions(ways), indent=1)))
    return (*artifacts, *(Artifact(f"{FOLDER}/{path.relative_to(out)}", path) for path in paths))


def chosen(facts: QairtFacts, folder: Path) -> WayName:
    """The way that the caller chose, or the best one of those that were written."""
    if facts.strategy:
        return WayName(facts.strategy)
    return WayName(json.loads((folder / WAYS).read_bytes())["ways"][0]["name"])


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    write_whole(path, text.encode())
    return path


def _whole(facts: QairtFacts, model: ir.Model, export: Exported, out: Path) -> list[Path]:
    """The files of the two ways that convert the whole graph; each has a folder of its own."""
    entries = {WayName.FALLBACK: integers_only(export.entries), WayName.EXPLICIT: dict(export.entries)}
    calls = {WayName.FALLBACK: FALLBACK_CALL, WayName.EXPLICIT: explicit_call(export)}
    blocks = any(entry.is_blocked for entry in export.entries.values())
    paths = []
    for name, call in calls.items():
        has_floats = any(entry.is_float for entry in entries[name].values())
        version = version_for(facts.sdk, floats=has_floats, blocks=blocks)
        content = encodings_file(model, entries[name], version)
        if facts.keep_graph:
            content = encodings_file(model, by_original_name(model, entries[name]), version)
        paths += _conversion(facts, model, content, call, out / name)
    return paths


def _conversion(facts: QairtFacts, model: ir.Model, encodings: bytes, call: ConverterCall, folder: Path) -> list[Path]:
    folder.mkdir()
    part = Part(MODEL, ENCODINGS, inputs_of(model), call)
    paths = [] if facts.keep_graph else list(write(model, folder / f"{MODEL}.onnx"))
    paths.append(_write(folder / ENCODINGS, encodings.decode()))
    return [*paths, *_commands(facts, (part,), folder)]


def _commands(facts: QairtFacts, parts: tuple[Part, ...], folder: Path) -> list[Path]:
    paths = [_write(folder / name, text) for name, text in configurations(facts, parts).items()]
    path = _write(folder / SCRIPT, script(facts, parts, own_model=facts.keep_graph))
    path.chmod(0o755)
    return [*paths, path]


def _split(
    facts: QairtFacts,
    model: ir.Model,
    parts: tuple[ModelPart, ...],
    simulated: tuple[ModelPart, ...],
    plan: Plan,
    entries: Mapping[str, TensorEncoding],
    folder: Path,
) -> list[Path]:
    """The parts of the graph with their encodings, the same cut of the simulation, and how they are connected."""
    folder.mkdir()
    paths, commands, rows = list[Path](), list[Part](), []
    for number, part in enumerate(parts):
        name = f"part_{number}"
        paths += write(part.model, folder / f"{name}.onnx")
        content = part_entries(part.model, plan, entries) if part.domain is Domain.INTEGER else {}
        if content:
            blocks = any(entry.is_blocked for entry in content.values())
            text = encodings_file(part.model, content, version_for(facts.sdk, blocks=blocks)).decode()
            paths.append(_write(folder / f"{name}.{ENCODINGS}", text))
        file = f"{name}.{ENCODINGS}" if content else None
        commands.append(Part(name, file, inputs_of(part.model), FALLBACK_CALL))
        rows.append(_part_row(name, part, file))
    simulation = []
    for number, part in enumerate(simulated):
        paths += write(part.model, folder / f"simulation_{number}.onnx")
        simulation.append(_part_row(f"simulation_{number}", part, None))
    manifest = {
        "about": "run the parts in this order; every input of a part is an input of the model or an output of an "
        "earlier part, by name",
        "inputs": [str(value.name) for value in model.graph.inputs],
        "outputs": [str(value.name) for value in model.graph.outputs],
        "parts": rows,
        "simulation": simulation,
    }
    paths.append(_write(folder / MANIFEST, json.dumps(manifest, indent=1)))
    return [*paths, *_commands(facts, tuple(commands), folder)]


def _part_row(name: str, part: ModelPart, encodings: str | None) -> dict[str, object]:
    graph = part.model.graph
    return {
        "model": f"{name}.onnx",
        "encodings": encodings,
        "computes_in": str(part.domain),
        "inputs": [str(value.name) for value in graph.inputs],
        "outputs": [str(value.name) for value in graph.outputs],
        "nodes": len(part.nodes),
    }


def _ways(facts: QairtFacts, ways: Ways) -> dict[str, object]:
    return {
        "sdk": facts.sdk_text,
        "chip": facts.chip.name,
        "status": _NOT_CHECKED,
        "ways": [to_builtins(way) for way in ways.ranked],
    }


def _predictions(ways: Ways) -> dict[str, object]:
    rows = {str(name): [_row(row) for row in predicted.values()] for name, predicted in ways.predictions.items()}
    return {"status": _NOT_CHECKED, "tensors": rows}


def _row(row: PredictedTensor) -> dict[str, str]:
    values = {"tensor": row.tensor, "role": str(row.role), "dtype": row.dtype, "because": str(row.cause)}
    return values if row.fact is None else {**values, "known_from": row.fact.known_from}
