"""Write what a customer of one SDK needs: models, encodings, scripts and the prediction, for every way out."""

from __future__ import annotations

import json
from pathlib import Path

import onnx_ir as ir

from dovetail.backend import Artifact
from dovetail.document import to_builtins
from dovetail.model.write import write, write_whole
from dovetail.storage import Plan
from dovetail.targets.qairt.call import ConverterCall
from dovetail.targets.qairt.coloring import Domain
from dovetail.targets.qairt.commands import SCRIPT, Part, configurations, inputs_of, script
from dovetail.targets.qairt.export import by_original_name, encodings_file, part_entries, version_of
from dovetail.targets.qairt.options import QairtFacts
from dovetail.targets.qairt.parts import ModelPart, cut
from dovetail.targets.qairt.planned import PlannedConversion, planned_conversion
from dovetail.targets.qairt.predict import PredictedTensor
from dovetail.targets.qairt.ways import FALLBACK_CALL, WayName, Ways
from dovetail.targets.qnn_htp.target import emit as emit_qdq_model

FOLDER = "qairt"
MODEL, ENCODINGS = "model", "encodings.json"
WAYS, PREDICTION, MANIFEST = "ways.json", "prediction.json", "manifest.json"
_NOT_CHECKED = "a prediction from public reports and documentation about the SDK; nothing here was checked with it"


def emit(facts: QairtFacts, model: ir.Model, plan: Plan, folder: Path) -> tuple[Artifact, ...]:
    """Write the QDQ model, which is the simulation, and a folder for Qualcomm's own converters."""
    artifacts = emit_qdq_model(model, plan, folder)
    conversion = planned_conversion(facts, model, plan)
    out = folder / FOLDER
    out.mkdir()
    paths = [*_whole(facts, conversion, out)]
    if conversion.parts:
        simulated = cut(ir.load(artifacts[0].path), conversion.of_node)
        paths += _split(facts, conversion, simulated, plan, out / WayName.SPLIT)
    paths.append(_write(out / WAYS, json.dumps(_ways(facts, conversion.ways), indent=1)))
    paths.append(_write(out / PREDICTION, json.dumps(_predictions(conversion.ways), indent=1)))
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


def _whole(facts: QairtFacts, conversion: PlannedConversion, out: Path) -> list[Path]:
    """The files of the two ways that convert the whole graph; each has a folder of its own."""
    paths = []
    for name in (WayName.FALLBACK, WayName.EXPLICIT):
        model, entries = conversion.model, conversion.entries(name)
        version = version_of(facts.sdk, entries)
        content = encodings_file(model, entries, version)
        if facts.keep_graph:
            content = encodings_file(model, by_original_name(model, entries), version)
        paths += _conversion(facts, model, content, conversion.call(name), out / name)
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
    facts: QairtFacts, conversion: PlannedConversion, simulated: tuple[ModelPart, ...], plan: Plan, folder: Path
) -> list[Path]:
    """The parts of the graph with their encodings, the same cut of the simulation, and how they are connected."""
    folder.mkdir()
    paths, commands, rows = list[Path](), list[Part](), []
    for number, part in enumerate(conversion.parts):
        name = f"part_{number}"
        paths += write(part.model, folder / f"{name}.onnx")
        content = part_entries(part.model, plan, conversion.export.entries) if part.domain is Domain.INTEGER else {}
        if content:
            text = encodings_file(part.model, content, version_of(facts.sdk, content)).decode()
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
        "inputs": [str(value.name) for value in conversion.model.graph.inputs],
        "outputs": [str(value.name) for value in conversion.model.graph.outputs],
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
