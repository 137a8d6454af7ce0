"""Check whether a code change alters the emitted files: record a hash of every file before it, compare after it.

    python -m bench.identity record before.jsonl        # 20 CPU minutes; on the commit before the change
    python -m bench.identity compare before.jsonl       # after it: exit code 1 if any row differs
    python -m bench.identity compare before.jsonl --quick --exports /tmp/exports     # 2 minutes, every target

Each row is one call of ``dovetail.fit`` or ``dovetail.repair``. The rows (bench/identity_cases.py) are: shipped models
x targets x precisions, the whole pipeline; some options and repairs; and one small network per family, up to the
emitted file. ``--quick`` stops every row before the vendor's compiler and skips the search for operand widths on
networks; it compares with a full recording. A recording is valid for one machine and its installed packages only,
because calibrated ranges come from float inference, which differs between CPUs. tests/test_identity.py is portable.

A row is a line of JSON with the hash of the input model (``input``), of every file (``files``) and of the plan
(``plan``: tensor, edge, dtype, scale, zero point, granularity; without reasons and group labels), and the status of
each verdict; or, if the call was refused, its error message (``refused``).

| file | byte-identical between two runs |
|---|---|
| model.onnx, tail.onnx, float.onnx (and .data) | yes |
| optimized.onnx of ONNX Runtime | except the names of ReorderInput and ReorderOutput (float Conv), which are ignored |
| model.pte, census.json of ExecuTorch | yes |
| engine.trt, layers.txt, float16_layers.txt of TensorRT-RTX | yes: without a GPU it times no kernels |
| dumped graph, context.onnx, context_qnn.bin of QNN | except the graph's name (a hash of the path), which is ignored |
| plan.json, result.json, run.json, repair.json, compile.log | not hashed: texts and formats may change; times, paths |
| profile.csv, profile_qnn.log, tensor_log.json of QNN | not hashed: not artifacts; times, paths |
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
from dovetail.clock import Reporter, cpu_seconds
from dovetail.trials.workbench import Workbench

Row = dict[str, Any]
# The stage that an emit-only row skips, by the name that ``fit`` passes to its reporter.
COMPILE = "compile"
# The files that Dovetail itself writes before the compiler runs; --quick compares only these.
EMITTED = ("model.onnx", "model.onnx.data", "tail.onnx", "tail.onnx.data")
# The fields of a plan row that define how a tensor is stored.
_FIELDS = ("tensor", "dtype", "scale", "zero_point", "axis", "granularity", "block_size")
# ONNX Runtime's name for a QNN partition; the first number is a hash of the model's path.
_PARTITION = re.compile(rb"QNNExecutionProvider_(\d+)_(\d+_\d+)")
# That name in a context binary: four bytes of length, the string, and zero padding.
_IN_BINARY = re.compile(rb".\0\0\0[!-~]*QNNExecutionProvider_\d+_\d+_\d+\0+", re.DOTALL)
# With fewer digits the string is four bytes shorter and moves everything after it, so another path is tried.
_DIGITS, _ATTEMPTS = 19, 6
# Nodes that ONNX Runtime inserts around float Conv, numbered in an order that differs from run to run (1.31.1).
_REORDER = b"Reorder"


class _ShortPathHashError(Exception):
    """The hash of this path has too few digits, which changes the layout of the context binary."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.identity", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", action="append", metavar="GLOB", help="only rows whose name matches (repeatable)")
    parser.add_argument("--quick", action="store_true", help="stop at the emitted file and skip the slow rows")
    parser.add_argument("--jobs", type=int, default=1, help="number of rows to run at the same time")
    parser.add_argument("--exports", type=Path, help="folder that keeps the exported networks for the next call")
    options = parser.parse_args(arguments)
    selected = _selected(options.only, quick=options.quick)
    if not selected:
        parser.error(f"no row matches {options.only}")
    if options.command == "compare":
        before = read_rows(options.file)
        return _compare(before, _rows(selected, options), options.only, quick=options.quick)
    options.file.parent.mkdir(parents=True, exist_ok=True)
    with options.file.open("w") as stream:
        for row in _rows(selected, options):
            stream.write(json.dumps(row) + "\n")
            stream.flush()
    return 0


def _selected(only: Sequence[str] | None, *, quick: bool) -> list[Case]:
    return [case for case in cases() if _matches(case.row, only) and not (quick and case.slow)]


def _matches(row: str, only: Sequence[str] | None) -> bool:
    return only is None or any(fnmatch.fnmatchcase(row, pattern) for pattern in only)


def _rows(selected: list[Case], options: argparse.Namespace) -> Iterator[Row]:
    """Yield each row when it is done, and print how long it took."""
    total = 0.0
    with tempfile.TemporaryDirectory(prefix="identity-") as temporary:
        folder = options.exports or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        before = cpu_seconds()
        models = sources((case.model for case in selected), folder)
        print(f"{cpu_seconds() - before:6.1f} s  models exported", flush=True)
        with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
            run_case = partial(make_row, quick=options.quick)
            for row, seconds in pool.map(run_case, selected, [models[case.model] for case in selected]):
                total += seconds
                print(f"{seconds:6.1f} s  {row['row']}{'  refused' if 'refused' in row else ''}", flush=True)
                yield row
    print(f"{len(selected)} rows, {total:.0f} CPU s")


def make_row(case: Case, source: Source, *, quick: bool = False) -> tuple[Row, float]:
    """Run one case and return its row and its CPU seconds, including child processes."""
    before = cpu_seconds()
    row: Row = {"row": case.row, "input": _sha256(source.path.read_bytes())}
    for attempt in range(_ATTEMPTS):
        with tempfile.TemporaryDirectory(prefix=f"identity-{attempt}-") as folder:
            run, model = Path(folder) / "run", Path(folder) / source.path.name
            shutil.copyfile(source.path, model)  # a compiler may write files next to it
            try:
                return {**row, **_outcome(case, model, source, run, quick or case.emit_only)}, cpu_seconds() - before
            except _ShortPathHashError:
                continue
            except (dovetail.InputError, dovetail.BackendError) as error:
                message = str(error).replace(str(run), "RUN").replace(str(model), model.name)
                return {**row, "refused": message}, cpu_seconds() - before
    raise RuntimeError(
        f"{case.row}: the hashes of {_ATTEMPTS} paths were all too short (about one in twenty is); run it again"
    )


def _outcome(case: Case, model: Path, source: Source, run: Path, emit_only: bool) -> Row:
    """Run one case and return the hashes of its files and plan, and its verdicts (none if it is emit-only)."""
    options: dict[str, Any] = {"range": "minmax", "baselines": "none", "cache": False, **case.options}
    if case.target.startswith("qnn-htp"):
        options["emulate"] = 1
    call = dovetail.repair if case.repair else partial(dovetail.fit, precision=case.precision)
    calibration = source.calibration if isinstance(source.calibration, Mapping) else str(source.calibration)
    with _skip_final_compile() if emit_only else nullcontext(_no_progress) as report:
        result = call(model, target=case.target, calibration=calibration, output=run, report=report, **options)
    plan_rows = json.loads((run / "plan.json").read_bytes())["rows"]
    if emit_only:
        return {"files": _hashes(run, EMITTED), "plan": plan_hash(plan_rows), "verdicts": {}}
    files = _hashes(run, (*(artifact.path for artifact in result.artifacts), "float.onnx", "float.onnx.data"))
    verdicts = {name: str(verdict.status) for name, verdict in result.verdicts.items()}
    return {"files": files, "plan": plan_hash(plan_rows), "verdicts": verdicts}


@contextmanager
def _skip_final_compile() -> Iterator[Reporter]:
    """Skip compiling the final model, while searches still compile their variants; yields the reporter for ``fit``.

    The reporter records the stages, which is how the final compilation is told from those of a search.
    """
    stages: list[str] = []
    original = Workbench.compile

    def compile_variants_only(self: Workbench, artifacts: tuple[Artifact, ...], folder: Path) -> CompileResult:
        if stages[-1] != COMPILE:
            return original(self, artifacts, folder)
        folder.mkdir(parents=True, exist_ok=True)
        return CompileResult(artifacts, error="not compiled", finished=False)

    Workbench.compile = compile_variants_only  # type: ignore[method-assign]
    try:
        yield lambda stage, _done, _total: stages.append(stage)
    finally:
        Workbench.compile = original  # type: ignore[method-assign]


def _no_progress(_stage: str, _done: int, _total: int | None) -> None:
    """A reporter that prints nothing."""


def plan_hash(plan_rows: Iterable[Mapping[str, Any]]) -> str:
    """Hash the rows of a plan, independent of their order and of how numbers are written."""
    rows = [[_edge(row), *(_plain(row[key]) for key in _FIELDS)] for row in plan_rows]
    return _sha256(json.dumps(sorted(rows, key=json.dumps)).encode())


def _edge(row: Mapping[str, Any]) -> list[Any] | None:
    """Parse the edge of a plan row into node and input index; None for a tensor's row."""
    if row["edge"] is None:
        return None
    node, _, index = row["edge"].rpartition(":")
    return [node, int(index)]


def _plain(value: Any) -> Any:
    return np.asarray(value, np.float64).tolist() if isinstance(value, int | float | list) else value


def _hashes(run: Path, paths: Iterable[str]) -> dict[str, str]:
    """File name (without folders) -> hash, for the files that exist."""
    return dict(sorted(_hash(run / path) for path in paths if (run / path).exists()))


def _hash(path: Path) -> tuple[str, str]:
    """Return the file's name and hash; names that differ from run to run are excluded."""
    name, content = path.name, path.read_bytes()
    if "QNNExecutionProvider" in name:
        return "qnn_graph.json", _sha256(_PARTITION.sub(rb"PARTITION_\2", content))
    if name == "context.onnx":
        return name, _sha256(_PARTITION.sub(rb"PARTITION_\2", str(onnx.load(path, load_external_data=False)).encode()))
    if name == "optimized.onnx" and _REORDER in content:
        return name, _sha256(_without_reorder_names(content))
    if name == "context_qnn.bin":
        if any(len(match[1]) < _DIGITS for match in _PARTITION.finditer(content)):
            raise _ShortPathHashError
        return name, _sha256(without_partition_names(content))
    return name, _sha256(content)


def _without_reorder_names(content: bytes) -> bytes:
    model = onnx.load_from_string(content)
    for node in model.graph.node:
        if node.op_type.startswith(_REORDER.decode()):
            node.ClearField("name")
    return model.SerializeToString(deterministic=True)


def without_partition_names(content: bytes) -> bytes:
    """Overwrite partition names in a context binary with zeros; all other bytes keep their offsets."""
    return _IN_BINARY.sub(lambda match: bytes(len(match[0])), content)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def read_rows(path: Path) -> dict[str, Row]:
    """Read a recording: row name -> row."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {row["row"]: row for row in rows}


def differences(before: Row, after: Row, *, emitted_only: bool = False) -> list[str]:
    """List what differs between two rows with the same name: fields, file names and verdicts."""
    changed = [key for key in ("input", "refused", "plan") if before.get(key) != after.get(key)]
    old_files, new_files = (row.get("files", {}) for row in (before, after))
    names = [name for name in sorted({*old_files, *new_files}) if not emitted_only or name in EMITTED]
    changed += [name for name in names if old_files.get(name) != new_files.get(name)]
    if not emitted_only:
        old, new = (row.get("verdicts", {}) for row in (before, after))
        changed += [
            f"{name} {old.get(name)} -> {new.get(name)}" for name in {**old, **new} if old.get(name) != new.get(name)
        ]
    return changed


def _compare(before: Mapping[str, Row], rows: Iterable[Row], only: Sequence[str] | None, *, quick: bool) -> int:
    """Print the rows that differ from the recording; return 1 if there is any."""
    lines, equal, seen = [], 0, set()
    for row in rows:
        name = row["row"]
        seen.add(name)
        recorded = before.get(name)
        changed = ["not in the recording"] if recorded is None else differences(recorded, row, emitted_only=quick)
        equal += not changed
        lines += [f"{name}: {', '.join(changed)}"] if changed else []
    slow = {case.row for case in cases() if case.slow} if quick else set()
    missing = [name for name in before if _matches(name, only) and name not in seen | slow]
    lines += [f"{name}: in the recording, but no longer a case" for name in missing]
    print("\n".join([*lines, f"{equal} rows equal, {len(lines)} differ"]))
    return int(bool(lines))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # read by the libraries that the child processes load
    sys.exit(main())
