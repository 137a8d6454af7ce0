"""Models that other tools quantized, before and after ``dovetail repair``: SQNR against float, on every target.

    python -m bench.repair                                  # every cell; a cell that is in the file is not run again
    python -m bench.repair --models vit_fashion --targets ort-cpu,tensorrt:sm89
    python -m bench.repair --table                          # print what has been measured

Three networks: YOLOv8n (from the package nudenet), the shipped Fashion ViT, and a network of convolutions and attention
(tests/repros/mynet_softmax_wrap.onnx). Seven quantizers: onnxruntime's ``quantize_static`` with all defaults, per
channel, and symmetric int8 for both (S8S8); its QNN helper with 8-bit and 16-bit activations; nvidia-modelopt in fp8
and int8, in an environment that is made in the folder of the results (or set DOVETAIL_MODELOPT_PYTHON to the Python of
one with ``nvidia-modelopt[onnx]``). A cell is "as given -> repaired" in dB of the output that loses most, against
float, each model's Q/DQ computed literally by ONNX Runtime on samples that were not calibrated on; in parentheses by
how much single samples change, mean and standard deviation, and the target's own figure where it ran, with that of the
model as given on the same samples if it ran fewer. Then how many operators are kept in float for it, and the verdicts
that failed; or the sentence with which the repair was refused. The exit code is 1 if a repaired model, simulated or on
the target, is more than 1 dB below the model as given, or if its verdict `repaired` failed.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import dovetail
from bench.repair_cases import MODELS, QUANTIZERS, NotAvailable
from dovetail.errors import InputError
from dovetail.finding import Status
from dovetail.report.result import Result
from dovetail.verify.repaired import AS_GIVEN, AS_GIVEN_THERE, REPAIRED, TARGET
from dovetail.verify.repaired import NAME as VERDICT

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "bench" / ".repair"
TARGETS = ("ort-cpu", "tensorrt:sm89", "qnn-htp:sm8550", "xnnpack")
DROP_DB = 1.0


@dataclass(frozen=True, slots=True)
class Cell:
    """One repair: the figures of the output that loses most, in dB, the verdicts that failed; or why there is none.

    ``change_db``: by how much single samples change, mean and standard deviation. ``given_there_db``: the figure of the
    model as given on the samples that the target ran. ``in_float``: what the repair keeps in float so that it is not
    worse.
    """

    model: str
    quantizer: str
    target: str
    as_given_db: float | None = None
    repaired_db: float | None = None
    target_db: float | None = None
    given_there_db: float | None = None
    change_db: tuple[float, float] | None = None
    in_float: str = ""
    failed: tuple[str, ...] = ()
    refused: str = ""

    @property
    def worse(self) -> bool:
        """Whether the repaired model, or the target, is worse than the verdict allows."""
        pairs = ((self.as_given_db, self.repaired_db), (self.given_there_db, self.target_db))
        drops = (given - now for given, now in pairs if given is not None and now is not None)
        return VERDICT in self.failed or any(drop > DROP_DB for drop in drops)

    def __str__(self) -> str:
        if self.as_given_db is None or self.repaired_db is None:
            return self.refused
        text = f"{self.as_given_db:.1f} -> {self.repaired_db:.1f}"
        details = []
        if self.change_db is not None:
            details.append(f"per sample {self.change_db[0]:+.1f} ± {self.change_db[1]:.1f}")
        if self.target_db is not None:
            there = self.given_there_db
            same = there is None or there == self.as_given_db
            details.append(f"target {self.target_db:.1f}" + ("" if same else f", as given there {there:.1f}"))
        text += f" ({', '.join(details)})" if details else ""
        text += f"; {self.in_float}" if self.in_float else ""
        text += f"; {', '.join(self.failed)} failed" if self.failed else ""
        return text + (f": {self.refused}" if self.refused else "")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--quantizers", default=",".join(QUANTIZERS))
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--folder", type=Path, default=FOLDER, help="models, and the cells that were measured")
    parser.add_argument("--table", action="store_true", help="print the cells that were measured, and run nothing")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)  # onnxruntime's quantizer warns about every LayerNormalization
    options.folder.mkdir(parents=True, exist_ok=True)
    record = options.folder / "cells.jsonl"
    cells = _read(record)
    models, quantizers = options.models.split(","), options.quantizers.split(",")
    for known, names, label in ((MODELS, models, "model"), (QUANTIZERS, quantizers, "quantizer")):
        for name in names:
            if name not in known:
                parser.error(f"unknown {label} {name!r}; expected one of {', '.join(known)}")
    if not options.table:
        for target in options.targets.split(","):
            for model in models:
                for quantizer in quantizers:
                    if (model, quantizer, target) not in cells:
                        cell = measure(model, quantizer, target, options.folder)
                        cells[model, quantizer, target] = cell
                        with record.open("a") as file:
                            file.write(json.dumps(asdict(cell)) + "\n")
                        print(f"{model} | {quantizer} | {target} | {cell}", flush=True)
    print(table(list(cells.values())))
    return 1 if any(cell.worse for cell in cells.values()) else 0


def measure(model: str, quantizer: str, target: str, folder: Path) -> Cell:
    """Quantize a network, unless that was done before, and repair it."""
    try:
        path, data, held_out = MODELS[model](folder)
        quantized = folder / f"{model}_{quantizer}.onnx"
        if not quantized.exists():
            QUANTIZERS[quantizer](path, quantized, data)
    except NotAvailable as missing:
        return Cell(model, quantizer, target, refused=str(missing))
    with tempfile.TemporaryDirectory(prefix="bench-repair-") as run:
        try:
            result = dovetail.repair(
                quantized,
                target=target,
                calibration=data,
                evaluation=held_out,
                output=Path(run) / "run",
                float_model=path,
            )
        except InputError as error:
            return Cell(model, quantizer, target, refused=str(error).replace(str(quantized), "the model"))
    return _cell(Cell(model, quantizer, target), result)


def _cell(cell: Cell, result: Result) -> Cell:
    """The cell with what the verdicts and decisions of a repair say."""
    verdict = result.verdicts[VERDICT]
    failed = tuple(name for name, other in result.verdicts.items() if other.status is Status.FAIL)
    numbers = verdict.numbers
    outputs = [name.removeprefix(REPAIRED) for name in numbers if name.startswith(REPAIRED)]
    if not outputs:
        return replace(cell, failed=failed, refused=verdict.reason)
    worst = max(outputs, key=lambda name: numbers[AS_GIVEN + name] - numbers[REPAIRED + name])
    mean, deviation = (numbers.get(f"{kind}: {worst}") for kind in ("mean drop per sample", "deviation of the drop"))
    types = numbers.get(f"types alone: {worst}")
    return replace(
        cell,
        as_given_db=numbers[AS_GIVEN + worst],
        repaired_db=numbers[REPAIRED + worst],
        target_db=numbers.get(TARGET + worst),
        given_there_db=numbers.get(AS_GIVEN_THERE + worst),
        change_db=None if mean is None or deviation is None else (-mean, deviation),
        in_float="; ".join(d.taken for d in result.decisions if d.is_whole),
        failed=failed,
        refused="" if types is None else f"the change of types alone gives {types:.1f}",
    )


def table(cells: Sequence[Cell]) -> str:
    """A Markdown table: one row per network and quantizer, one column per target."""
    targets = list(dict.fromkeys(cell.target for cell in cells))
    rows: dict[tuple[str, str], dict[str, Cell]] = {}
    for cell in cells:
        rows.setdefault((cell.model, cell.quantizer), {})[cell.target] = cell
    lines = [f"| network | quantizer | {' | '.join(targets)} |", "|---" * (2 + len(targets)) + "|"]
    for (model, quantizer), row in rows.items():
        texts = [str(row[target]) if target in row else "not run" for target in targets]
        lines.append(f"| {model} | {quantizer} | {' | '.join(texts)} |")
    return "\n".join(lines)


def _read(record: Path) -> dict[tuple[str, str, str], Cell]:
    lines = record.read_text().splitlines() if record.exists() else []
    tuples = ("failed", "change_db")
    rows = [{**row, **{key: tuple(row[key]) for key in tuples if row.get(key)}} for row in map(json.loads, lines)]
    cells = [Cell(**row) for row in rows]
    return {(cell.model, cell.quantizer, cell.target): cell for cell in cells}


if __name__ == "__main__":
    sys.exit(main())
