"""Whether a change of the code changes what is emitted: hashes of every file, row by row, recorded and compared.

    python -m bench.identity record before.jsonl        # 20 CPU minutes; on the commit before the change
    python -m bench.identity compare before.jsonl       # after it: exit code 1 if any row differs
    python -m bench.identity compare before.jsonl --quick --exports /tmp/exports     # 2 minutes, every target

It calls ``dovetail.fit`` and ``dovetail.repair`` and looks at what they leave. Rows are shipped models x targets x
precisions, whole; some options and repairs; and one small network per family, up to the emitted file (bench/
identity_cases.py). ``--quick`` stops every row before the vendor's compiler and leaves out the search for operand
widths on networks; it compares with a whole recording. A recording is of one machine and its installed packages:
calibrated ranges come from float inference, which differs between CPUs. tests/test_identity.py is portable.

A row is a line of JSON: the hash of the model that was given (``input``), of every file (``files``), of the plan
(``plan``: tensor, edge, type, scale, zero point, granularity; no reasons and no group labels), and how the verdicts
ended; or the sentence with which it was refused.

| file | the same bytes when made twice |
|---|---|
| model.onnx, tail.onnx, float.onnx (and .data) | yes |
| optimized.onnx of ONNX Runtime | but for the names of ReorderInput and ReorderOutput (float convolutions); left out |
| model.pte, census.json of ExecuTorch | yes |
| engine.trt, layers.txt, float16_layers.txt of TensorRT-RTX | yes: without a GPU it times nothing |
| the dumped graph, context.onnx, context_qnn.bin of QNN | but for a graph name with a hash of the path; left out |
| plan.json, result.json, run.json, repair.json, compile.log | not hashed: words and formats may change; times, paths |
| profile.csv, profile_qnn.log, tensor_log.json of QNN | not hashed: no artifacts; times, paths |
| device/ | not hashed: copies of the above, samples, scripts |
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import dovetail
from bench.identity_cases import Case, Source, cases, sources
from dovetail.backend import Artifact, CompileResult
from dovetail.clock import Reporter
from dovetail.trials.workbench import Workbench

Row = dict[str, Any]
# The stage in which an emit-only row compiles nothing, as ``fit`` names it to its reporter.
COMPILE = "compile"
# What Dovetail itself writes before the compiler runs; --quick compares nothing else.
EMITTED = ("model.onnx", "model.onnx.data", "tail.onnx", "tail.onnx.data")
# The fields of a decision that say how a tensor is stored.
_FIELDS = ("tensor", "dtype", "scale", "zero_point", "axis", "granularity", "block_size")
# The name that ONNX Runtime gives a partition for QNN: the number is a hash of the model's path.
_PARTITION = re.compile(rb"QNNExecutionProvider_(\d+)_(\d+_\d+)")
# In a context binary: a string with its length (four bytes) in front, and zeros up to what stands behind.
_IN_BINARY = re.compile(rb".\0\0\0[!-~]*QNNExecutionProvider_\d+_\d+_\d+\0+", re.DOTALL)
# With fewer digits the string is four bytes shorter, and what follows stands elsewhere: then another path is tried.
_DIGITS, _ATTEMPTS = 19, 6


# What ONNX Runtime puts around float convolutions, numbered in an order that differs from run to run (1.31.1).
_REORDER = b"Reorder"


class _OtherPathError(Exception):
    """The hash of this path is too short to leave the context binary's layout as it is with others."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.identity", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", action="append", metavar="GLOB", help="rows by name; may be given several times")
    parser.add_argument("--quick", action="store_true", help="up to the emitted file, without the slow rows")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--exports", type=Path, help="where exported networks are kept and looked for")
    given = parser.parse_args(arguments)
    chosen = _chosen(given.only, quick=given.quick)
    if not chosen:
        parser.error(f"no row matches {given.only}")
    if given.command == "compare":
        before = read_rows(given.file)
        return _compare(before, _rows(chosen, given), given.only, quick=given.quick)
    given.file.parent.mkdir(parents=True, exist_ok=True)
    with given.file.open("w") as stream:
        for row in _rows(chosen, given):
            stream.write(json.dumps(row) + "\n")
            stream.flush()
    return 0


def _chosen(only: Sequence[str] | None, *, quick: bool) -> list[Case]:
    return [case for case in cases() if _matches(case.row, only) and not (quick and case.slow)]


def _matches(row: str, only: Sequence[str] | None) -> bool:
    return only is None or any(fnmatch.fnmatchcase(row, pattern) for pattern in only)


def _rows(chosen: list[Case], given: argparse.Namespace) -> Iterator[Row]:
    """The rows as they are made, each with a line that says how long it took."""
    total = 0.0
    with tempfile.TemporaryDirectory(prefix="identity-") as temporary:
        folder = given.exports or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        before = _cpu_seconds()
        found = sources((case.model for case in chosen), folder)
        print(f"{_cpu_seconds() - before:6.1f} s  models exported", flush=True)
        with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
            make = partial(made_row, quick=given.quick)
            for row, seconds in pool.map(make, chosen, [found[case.model] for case in chosen]):
                total += seconds
                print(f"{seconds:6.1f} s  {row['row']}{'  refused' if 'refused' in row else ''}", flush=True)
                yield row
    print(f"{len(chosen)} rows, {total:.0f} CPU s")


def made_row(case: Case, source: Source, *, quick: bool = False) -> tuple[Row, float]:
    """One row, and its CPU seconds, children included."""
    before = _cpu_seconds()
    row: Row = {"row": case.row, "input": _sha256(source.path.read_bytes())}
    for attempt in range(_ATTEMPTS):
        with tempfile.TemporaryDirectory(prefix=f"identity-{attempt}-") as folder:
            run, model = Path(folder) / "run", Path(folder) / source.path.name
            shutil.copyfile(source.path, model)  # a compiler may leave files beside it
            try:
                return {**row, **_showed(case, model, source, run, quick or case.emit_only)}, _cpu_seconds() - before
            except _OtherPathError:
                continue
            except (dovetail.InputError, dovetail.BackendError) as error:
                sentence = str(error).replace(str(run), "RUN").replace(str(model), model.name)
                return {**row, "refused": sentence}, _cpu_seconds() - before
    raise RuntimeError(f"{case.row}: the hashes of {_ATTEMPTS} paths were all short, of which one in twenty is")


def _showed(case: Case, model: Path, source: Source, run: Path, emit_only: bool) -> Row:
    """What a run left: hashes of its files and of its plan, and its verdicts if it got that far."""
    options: dict[str, Any] = {"range": "minmax", "baselines": "none", **case.options}
    if case.target.startswith("qnn-htp"):
        options["emulate"] = 1
    call = dovetail.repair if case.repair else partial(dovetail.fit, precision=case.precision)
    calibration = source.calibration if isinstance(source.calibration, Mapping) else str(source.calibration)
    with _not_compiled() if emit_only else nullcontext(_go_on) as report:
        result = call(model, target=case.target, calibration=calibration, output=run, report=report, **options)
    decisions = json.loads((run / "plan.json").read_bytes())["rows"]
    if emit_only:
        return {"files": _hashes(run, EMITTED), "plan": plan_hash(decisions), "verdicts": {}}
    files = _hashes(run, (*(artifact.path for artifact in result.artifacts), "float.onnx", "float.onnx.data"))
    verdicts = {name: str(verdict.status) for name, verdict in result.verdicts.items()}
    return {"files": files, "plan": plan_hash(decisions), "verdicts": verdicts}


@contextmanager
def _not_compiled() -> Iterator[Reporter]:
    """Searches compile what they try, and what ships is only emitted; gives the reporter that says when that is."""
    stages: list[str] = []
    usual = Workbench.compile

    def compile_before(self: Workbench, artifacts: tuple[Artifact, ...], folder: Path) -> CompileResult:
        if stages[-1] != COMPILE:
            return usual(self, artifacts, folder)
        folder.mkdir(parents=True, exist_ok=True)
        return CompileResult(artifacts, error="not compiled", finished=False)

    Workbench.compile = compile_before  # type: ignore[method-assign]
    try:
        yield lambda stage, _done, _total: stages.append(stage)
    finally:
        Workbench.compile = usual  # type: ignore[method-assign]


def _go_on(_stage: str, _done: int, _total: int | None) -> None:
    """Whole rows say nothing on the way."""


def plan_hash(decisions: Iterable[Mapping[str, Any]]) -> str:
    """The hash of a plan's decisions, whatever their order and the format that they were written in."""
    rows = [[_edge(row), *(_plain(row[key]) for key in _FIELDS)] for row in decisions]
    return _sha256(json.dumps(sorted(rows, key=json.dumps)).encode())


def _edge(row: Mapping[str, Any]) -> list[Any] | None:
    """Which input of which node a decision is for, None if for a tensor; the one place that knows how it is spelled."""
    if row["edge"] is None:
        return None
    node, _, index = row["edge"].rpartition(":")
    return [node, int(index)]


def _plain(value: Any) -> Any:
    return np.asarray(value, np.float64).tolist() if isinstance(value, int | float | list) else value


def _hashes(run: Path, paths: Iterable[str]) -> dict[str, str]:
    """By file name, without folders, of those that are there."""
    return dict(sorted(_hash(run / path) for path in paths if (run / path).exists()))


def _hash(path: Path) -> tuple[str, str]:
    """Name and hash; of QNN's files without the name of the partition."""
    name, content = path.name, path.read_bytes()
    if "QNNExecutionProvider" in name:
        return "qnn_graph.json", _sha256(_PARTITION.sub(rb"PARTITION_\2", content))
    if name == "context.onnx":
        return name, _sha256(_PARTITION.sub(rb"PARTITION_\2", str(onnx.load(path, load_external_data=False)).encode()))
    if name == "optimized.onnx" and _REORDER in content:
        return name, _sha256(_without_reorder_names(content))
    if name == "context_qnn.bin":
        if any(len(match[1]) < _DIGITS for match in _PARTITION.finditer(content)):
            raise _OtherPathError
        return name, _sha256(unnamed(content))
    return name, _sha256(content)


def _without_reorder_names(content: bytes) -> bytes:
    model = onnx.load_from_string(content)
    for node in model.graph.node:
        if node.op_type.startswith(_REORDER.decode()):
            node.ClearField("name")
    return model.SerializeToString(deterministic=True)


def unnamed(content: bytes) -> bytes:
    """A context binary with zeros where the partition is named; what stands behind keeps its place."""
    return _IN_BINARY.sub(lambda match: bytes(len(match[0])), content)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _cpu_seconds() -> float:
    return sum(os.times()[:4])


def read_rows(path: Path) -> dict[str, Row]:
    """A recording, by row name."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {row["row"]: row for row in rows}


def differences(before: Row, after: Row, *, emitted_only: bool = False) -> list[str]:
    """What differs between two rows of a name: files by their names, and the other fields."""
    found = [key for key in ("input", "refused", "plan") if before.get(key) != after.get(key)]
    sides = [row.get("files", {}) for row in (before, after)]
    names = [name for name in sorted({*sides[0], *sides[1]}) if not emitted_only or name in EMITTED]
    found += [name for name in names if sides[0].get(name) != sides[1].get(name)]
    verdicts = [row.get("verdicts", {}) for row in (before, after)]
    if not emitted_only and verdicts[0] != verdicts[1]:
        changed = [name for name in {**verdicts[0], **verdicts[1]} if verdicts[0].get(name) != verdicts[1].get(name)]
        found += [f"{name} {verdicts[0].get(name)} -> {verdicts[1].get(name)}" for name in changed]
    return found


def _compare(before: Mapping[str, Row], rows: Iterable[Row], only: Sequence[str] | None, *, quick: bool) -> int:
    lines, equal, seen = [], 0, set()
    for row in rows:
        name = row["row"]
        seen.add(name)
        known = before.get(name)
        found = ["not in the recording"] if known is None else differences(known, row, emitted_only=quick)
        equal += not found
        lines += [f"{name}: {', '.join(found)}"] if found else []
    slow = {case.row for case in cases() if case.slow} if quick else set()
    gone = [name for name in before if _matches(name, only) and name not in seen | slow]
    lines += [f"{name}: no such row any more" for name in gone]
    print("\n".join([*lines, f"{equal} rows equal, {len(lines)} differ"]))
    return int(bool(lines))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # read by the libraries that the rows' processes load
    sys.exit(main())
