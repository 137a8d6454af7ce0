"""What planning and emitting give for the shipped models on every target, as hashes that are the same on every machine.

    python -m tests.identity_hashes            # what differs from tests/identity.jsonl
    python -m tests.identity_hashes --write    # record anew

Record anew when a change is meant to alter what is emitted, in a commit of its own whose message has a table of what
changed in which rows; a refactoring never does. Ranges are not calibrated: float inference rounds differently from CPU
to CPU, so every tensor has a range that follows from its name. Nothing is compiled. ``python -m bench.identity`` goes
through calibration, searches and the vendors' compilers, and holds on one machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import onnx_ir as ir

from dovetail import zoo
from dovetail.model.read import read
from dovetail.model.split import split
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.passes.normalize import normalize
from dovetail.plan.constraints import build_problem
from dovetail.plan.make import make_plan, narrower, observed
from dovetail.plan.pins import resolve_keeps
from dovetail.plan.request import Keep, OperandPin, Pins, Request
from dovetail.stats import DataInfo, Stats, TensorStats
from dovetail.storage import Reason
from dovetail.target import Target
from dovetail.targets import open_target
from dovetail.versions import core_versions

STORED = Path(__file__).with_name("identity.jsonl")
VERSIONS = "versions"
TARGETS: Mapping[str, tuple[str, ...]] = {
    "ort-cpu": ("w8a8", "w8a16", "fp32"),
    "qnn-htp:sm8550": ("w8a16", "w8a8", "fp16"),
    "xnnpack": ("w8a8", "w8a8-dynamic", "fp32"),
    "tensorrt:sm89": ("fp8", "w8a8", "fp16"),
}
KEPT = ("vit_digits", "ort-cpu", "blocks.0.*")


def rows(model: str) -> Iterator[tuple[str, str]]:
    """The hash of the emitted file, by ``model|target|precision``, for every target."""
    normalized, _ = normalize(read(zoo.load(model).model_path))
    for name, precisions in TARGETS.items():
        target = open_target(name)
        graph = _rewritten(normalized, target)
        stats = _stats(graph, target)
        for precision in precisions:
            yield (
                f"{model}|{name}|{precision}",
                _emitted(graph, target, stats, Request(target.table.precisions[precision])),
            )
        if (model, name) == KEPT[:2]:
            keep = Keep(KEPT[2], target.table.precisions["fp32"])
            pins = resolve_keeps(build_problem(graph, target.table), [keep])
            request = Request(target.table.precisions["w8a8"], pins=pins)
            yield f"{model}|{name}|w8a8|keep", _emitted(graph, target, stats, request)
        if name.startswith("qnn-htp"):
            request = Request(target.table.precisions["w8a16"])
            narrow = narrower(graph, target.table, stats, request)
            request = request.pinned(
                Pins(operands={e: OperandPin(one, Reason.PINNED, "") for e, one in narrow.items()})
            )
            yield f"{model}|{name}|w8a16|operands=narrow", _emitted(graph, target, stats, request)


def stored() -> tuple[dict[str, str], dict[str, str]]:
    """The recorded hashes, and the versions of the packages under which they were recorded."""
    lines = [json.loads(line) for line in STORED.read_text().splitlines()]
    return {line["row"]: line["sha256"] for line in lines[1:]}, lines[0][VERSIONS]


def _rewritten(normalized: ir.Model, target: Target) -> ir.Model:
    graph = split(normalized, target.table.unsupported).head.clone()
    for each in (*target.rewrites.graph, infer_shapes):
        each(graph)
    return graph


def _stats(graph: ir.Model, target: Target) -> Stats:
    tensors = {name: TensorStats(*_range(name)) for name in observed(graph, target.table)}
    return Stats(tensors, DataInfo("ranges by name", 1, ""))


def _range(name: str) -> tuple[float, float]:
    """At most from -8 to 8, in steps of 1/32 with zero inside: exact in float32 and float16."""
    low, high = hashlib.sha256(name.encode()).digest()[:2]
    return -(low + 1) / 32, (high + 1) / 32


def _emitted(graph: ir.Model, target: Target, stats: Stats, request: Request) -> str:
    with tempfile.TemporaryDirectory() as folder:
        artifacts = target.backend.emit(graph, make_plan(graph, target.table, stats, request), Path(folder))
        return hashlib.sha256(b"".join(artifact.path.read_bytes() for artifact in artifacts)).hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.identity_hashes")
    parser.add_argument("--write", action="store_true", help="record anew")
    write = parser.parse_args().write
    found = {row: sha256 for model in zoo.names() for row, sha256 in rows(model)}
    known = stored()[0] if STORED.exists() else {}
    changed = [row for row in {**known, **found} if known.get(row) != found.get(row)]
    print("\n".join([*changed, f"{len(changed)} of {len(found)} rows differ"]))
    if write:
        lines = [{VERSIONS: core_versions()}, *({"row": row, "sha256": sha256} for row, sha256 in found.items())]
        STORED.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return int(bool(changed) and not write)


if __name__ == "__main__":
    sys.exit(main())
