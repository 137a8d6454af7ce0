"""``python -m bench.bisect``: the smallest failing part of models with a planted or known failure, on the HTP compiler.

Prints the nodes that are left and how many graphs were compiled. The four patterns are planted in a quantized vision
transformer of twelve layers; YOLOv8n (package nudenet) is fitted without the workaround for a Conv with a SiLU.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.equality import Array
from tests.networks import planted_vit, pretrained

from dovetail.bisect.parts import divided
from dovetail.bisect.search import PREDICATES, Judges, failing_part
from dovetail.sweep.fit_graph import FitRequest
from dovetail.targets import open_target

TARGET = "qnn-htp:sm8550"
YOLO = "yolov8n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.bisect", description=__doc__.partition("\n")[0])
    names = (*planted_vit.PATTERNS, YOLO)
    parser.add_argument("--only", choices=names, action="append", help="only this one; can be repeated")
    print(f"{'case':15} {'nodes':>6} {'left':>5} {'compiled':>9}  operators")
    for name in parser.parse_args().only or names:
        with tempfile.TemporaryDirectory() as folder:
            print(_yolo() if name == YOLO else _planted(name, Path(folder)), flush=True)


def _planted(name: str, folder: Path) -> str:
    path = planted_vit.planted_vit(name, open_target(TARGET), folder)
    return _row(name, FitRequest(path, path, TARGET, "", build_only=True), planted_vit.samples(), "refused")


def _yolo() -> str:
    network = pretrained.NETWORKS[YOLO]
    samples = {name: array[:2, None] for name, array in network.calibration().items()}
    option = {"workarounds": "off"}
    how = FitRequest(network.path, network.path, TARGET, "w8a16", option, build_only=True)
    return _row(YOLO, how, samples, "wrong", network.shape)


def _row(
    name: str,
    how: FitRequest,
    samples: Mapping[str, Array],
    predicate: str,
    shape: Mapping[str, tuple[int, ...]] | None = None,
) -> str:
    rows = range(len(next(iter(samples.values()))))
    whole = divided(how.model, shape or {}, [{key: array[row] for key, array in samples.items()} for row in rows])
    with Judges(whole.quantized) as judges:
        part = failing_part(whole, how, judges, PREDICATES[predicate])
    if part is None:
        return f"{name:15} {len(whole.elements):6}  does not fail"
    operators = ", ".join(operator for operator, _ in part.nodes)
    return f"{name:15} {len(whole.elements):6} {len(part.nodes):5} {part.compiled:9}  {operators}"


if __name__ == "__main__":
    main()
