"""``python -m bench.check_recall``: what ``check`` predicts of a naive export, against the real HTP compiler.

Every network of the HTP zoo is exported by ``onnxruntime.quantization`` with its QNN helpers, in w8a16 and in w8a8. The
unit is an operator: a node of the QDQ model that is neither a Q nor a DQ.

- *changed*: the compiler does not run the operator in the dtypes of its Q/DQ pairs (``bench/naive_truth.py`` has the
  definition). The model is compiled with CPU fallback, so that one operator on the CPU hides nothing of the others.
- *predicted*: ``check``, which runs no backend, has a finding at the operator, an error or a warning, of a rule about
  where and in which dtypes operators run: the categories Q1 to Q4 and Q6. Findings about numbers (Q5), which are right
  or wrong whatever the dtypes are, are not counted.

Recall is the part of the changed operators that is predicted; precision the part of the predicted ones that is changed.
Where the compiler refuses the whole graph in spite of the fallback, only the operators that it names are known to be
changed: such a model counts for recall alone.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from bench.naive_networks import NETWORKS, PRECISIONS, export
from bench.naive_session import GRAPHS
from bench.naive_truth import Changed, changes, operators
from dovetail.checking import check_file
from dovetail.errors import InputError
from dovetail.finding import Severity
from dovetail.targets import open_target
from dovetail.targets.htp.chips import chip_named
from dovetail.targets.qnn_htp.dump import DumpError
from dovetail.targets.qnn_htp.install import PACKAGE
from dovetail.targets.qnn_htp.options import read_options
from dovetail.targets.tool_call import ToolCall, call_tool, model_inputs

CHIP = "sm8550"
# The categories of rules about where and in which dtypes operators run.
COUNTED = ("Q1", "Q2", "Q3", "Q4", "Q6")


@dataclass(frozen=True, slots=True)
class Row:
    """One network at one precision: operators by name, what the compiler changes, and the findings at each.

    ``refused``: the compiler refused the whole graph; what is predicted beyond the operators that it named is unknown.
    """

    name: str
    operators: Mapping[str, str]
    changed: Mapping[str, Changed]
    predicted: Mapping[str, tuple[str, ...]]
    refused: str = ""

    @property
    def hit(self) -> set[str]:
        """The changed operators that are predicted."""
        return set(self.changed) & set(self.predicted)

    @property
    def recall(self) -> float:
        """1 if nothing is changed."""
        return _part(len(self.hit), len(self.changed))

    @property
    def precision(self) -> float:
        """1 if nothing is predicted, or nothing is known of what is."""
        return 1.0 if self.refused else _part(len(self.hit), len(self.predicted))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.check_recall", description=__doc__.partition("\n")[0])
    parser.add_argument("network", nargs="*", help=f"{', '.join(NETWORKS)}; all if none is named")
    parser.add_argument("--precision", choices=PRECISIONS, action="append", help="only this one; can be repeated")
    parser.add_argument("--detail", type=int, default=0, metavar="N", help="list N missed operators and false alarms")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.network if name not in NETWORKS]
    if unknown:
        parser.error(f"unknown network {unknown[0]!r}; expected one of {', '.join(NETWORKS)}")
    print(f"{'network':34} {'operators':>9} {'changed':>8} {'predicted':>9} {'hit':>5} {'recall':>7} {'precision':>9}")
    rows = []
    for name in given.network or NETWORKS:
        for precision in given.precision or PRECISIONS:
            with tempfile.TemporaryDirectory(prefix="dovetail-bench-") as folder:
                try:
                    row = measured(name, precision, Path(folder))
                except NotMeasured as reason:
                    print(f"{name} {precision}: not measured: {reason}", flush=True)
                    continue
            rows.append(row)
            print(_line(row.name, [row]), flush=True)
            _print_detail(row, given.detail)
    _print_totals(rows)
    asked = len(given.network or NETWORKS) * len(given.precision or PRECISIONS)
    print(f"{len(rows)} of {asked} models measured")
    return int(len(rows) < asked)


class NotMeasured(Exception):
    """A network that could not be exported or compiled; the message says why."""


def measured(name: str, precision: str, folder: Path) -> Row:
    """Export a network, check the export, compile it, and compare the two."""
    path = folder / "model.onnx"
    if error := export(NETWORKS[name], precision, path):
        raise NotMeasured(error)
    return measured_file(f"{name} {precision}", path, folder)


def measured_file(name: str, path: Path, folder: Path) -> Row:
    """Check a QDQ model, compile it, and compare the two."""
    call = ToolCall(
        "bench.naive_session:compile_in_child",
        {"model": "model.onnx", "options": dict(read_options(chip_named(CHIP), {}).provider)},
        inputs=model_inputs(path),
        packages=(PACKAGE,),
        who="the HTP compiler",
    )
    result = call_tool(call, folder)
    if result.answer is None:
        raise NotMeasured(result.error)
    refused = str(result.answer["error"])
    try:
        changed = changes(path, folder / GRAPHS, result.log, refused)
        names = {operator.name: operator.op_type for operator in operators(path)}
        return Row(name, names, changed, predictions(path, names), refused)
    except (DumpError, InputError) as error:  # such as an infinite scale, that of a quantized mask
        raise NotMeasured(str(error)) from error


def predictions(path: Path, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The codes of the counted findings at each operator that has one, by the operator's name."""
    known, found = set(names), dict[str, dict[str, None]]()
    for finding in check_file(path, open_target(f"qnn-htp:{CHIP}")):
        if finding.code.startswith(COUNTED) and finding.severity is not Severity.NOTE:
            for node in known.intersection(finding.place.nodes):
                found.setdefault(node, {})[finding.code] = None
    return {node: tuple(codes) for node, codes in found.items()}


def _part(part: int, whole: int) -> float:
    return part / whole if whole else 1.0


def _line(name: str, rows: Sequence[Row]) -> str:
    operators, changed = sum(len(row.operators) for row in rows), sum(len(row.changed) for row in rows)
    predicted, hit = sum(len(row.predicted) for row in rows), sum(len(row.hit) for row in rows)
    judged = [row for row in rows if not row.refused]
    right, claimed = sum(len(row.hit) for row in judged), sum(len(row.predicted) for row in judged)
    shares = f"{_part(hit, changed):7.1%} {_part(right, claimed):9.1%}"
    return f"{name:34} {operators:9} {changed:8} {predicted:9} {hit:5} {shares}"


def _print_detail(row: Row, count: int) -> None:
    for name in [name for name in row.changed if name not in row.predicted][:count]:
        change = row.changed[name]
        print(f"    missed       {row.operators[name]} {name!r}: {change.how} {change.detail}")
    for name in [name for name in row.predicted if name not in row.changed and not row.refused][:count]:
        print(f"    false alarm  {row.operators[name]} {name!r}: {', '.join(row.predicted[name])}")


def _print_totals(rows: Sequence[Row]) -> None:
    """The figures of all networks together, and what is missed and falsely reported, by kind."""
    missed = Counter(
        f"{row.operators[name]} {change.how}"
        for row in rows
        for name, change in row.changed.items()
        if name not in row.predicted
    )
    false = Counter(
        f"{' '.join(codes)} {row.operators[name]}"
        for row in rows
        for name, codes in row.predicted.items()
        if name not in row.changed and not row.refused
    )
    hit = Counter(f"{row.operators[name]} {row.changed[name].how}" for row in rows for name in row.hit)
    print(_line("all operators", rows))
    if rows:
        means = f"{fmean(row.recall for row in rows):7.1%} {fmean(row.precision for row in rows):9.1%}"
        print(f"{'mean over networks':34} {'':9} {'':8} {'':9} {'':5} {means}")
    for title, counter in (("changed and predicted", hit), ("missed", missed), ("false alarms", false)):
        kinds = ", ".join(f"{kind} {count}" for kind, count in counter.most_common()) or "none"
        print(f"{title}: {kinds}")


if __name__ == "__main__":
    sys.exit(main())
