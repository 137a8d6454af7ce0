"""The structure of the code: imports go downwards, vendor packages stay in their target, public names are listed."""

from __future__ import annotations

import ast
import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import dovetail
from dovetail.target import Target
from dovetail.targets import FAMILIES, open_target

SOURCE = Path(dovetail.__file__).parent
# From the lowest layer to the highest: a module imports from its own layer and the lower ones, never from higher ones.
LAYERS = (
    ("errors", "whole_number", "files", "clock", "garbage", "printable"),
    ("edge", "encoding", "finding"),
    ("storage", "stats", "pass_record", "document"),
    ("op_support", "backend"),
    ("numerics",),
    ("model",),
    ("passes", "qdq"),
    ("calibrate", "plan"),
    ("encodings",),
    ("rules", "verify"),
    ("trials",),
    ("target",),
    ("targets",),
    ("zoo",),
    ("run_lock", "run_record"),
    ("catalog", "config", "float_graph", "float_sessions", "rundir", "versions"),
    ("allow_list", "checking", "rule_docs", "stages"),
    ("job", "stage_files"),
    ("report",),
    ("device",),
    ("float_stages", "shipping"),
    ("pipeline", "sensitivity_run"),
    ("repair_record", "repair_verdict"),
    ("repairs", "encodings_run"),
    ("api", "torch_export"),
    ("sweep",),
    ("bisect",),
    ("cli",),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
# Where a vendor's package may be imported: in a target, and where a torch module is exported to ONNX.
VENDOR_PLACES = ("targets", "torch_export")
VENDORS = ("onnxruntime_qnn", "tensorrt", "tensorrt_rtx", "executorch", "torch", "torchao", "transformers")


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports_of(path: Path, *, top_level_only: bool = False) -> Iterator[str]:
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_imports_go_downwards() -> None:
    wrong = []
    for path in modules():
        part = part_of(path)
        if part == "__init__":
            continue
        assert part in LEVEL, f"{part} is in no layer: add it to LAYERS"
        for name in imports_of(path):
            parts = name.split(".")
            if parts[0] == "dovetail" and len(parts) > 1 and LEVEL.get(parts[1], 0) > LEVEL[part]:
                wrong.append(f"{path.relative_to(SOURCE)} imports {name}, which is above it")
    assert wrong == []


def test_vendor_packages_stay_lazy_in_their_target() -> None:
    for path in modules():
        if part_of(path) not in VENDOR_PLACES:
            assert [name for name in imports_of(path) if name.split(".")[0] in VENDORS] == [], path
        assert [name for name in imports_of(path, top_level_only=True) if name.split(".")[0] in VENDORS] == [], path


def test_every_module_can_be_imported_first() -> None:
    """No cycle of imports at the top of modules; importing a module imports the packages that it is in first."""
    names = {".".join(path.relative_to(SOURCE.parent).with_suffix("").parts): path for path in modules()}
    names = {name.removesuffix(".__init__"): path for name, path in names.items()}
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for name, path in names.items():
        sorter.add(name)
        for imported in imports_of(path, top_level_only=True):
            parts = imported.split(".")
            packages = {".".join(parts[: count + 1]) for count in range(len(parts))} & names.keys()
            sorter.add(name, *(package for package in packages if not f"{name}.".startswith(f"{package}.")))
    sorter.prepare()  # an error if there is a cycle


def test_no_cycle_between_packages() -> None:
    """No package imports another one that imports it, directly or not; imports for annotations count."""
    uses: dict[str, set[str]] = {}
    for path in modules():
        names = (name.split(".") for name in imports_of(path))
        packages = {parts[1] for parts in names if parts[0] == "dovetail" and len(parts) > 1 and parts[1] in LEVEL}
        uses.setdefault(part_of(path), set()).update(packages - {part_of(path)})
    uses.pop("__init__")
    done: set[str] = set()
    while len(done) < len(uses):
        free = {part for part, used in uses.items() if part not in done and used <= done}
        assert free, f"a cycle among {sorted(set(uses) - done)}"
        done |= free


# Names of a backend: in no identifier, import or literal outside targets/; docstrings and comments may have them.
_BACKENDS = re.compile(r"qnn|htp|tensorrt|\btrt|xnnpack|executorch|qairt|qualcomm|nvidia", re.IGNORECASE)


def _docstrings(tree: ast.Module) -> set[ast.AST]:
    owners = [node for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)]
    first = [node.body[0] for node in owners if node.body]
    return {node.value for node in first if isinstance(node, ast.Expr)}


def _words(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    names = (getattr(node, field, None) for field in ("id", "attr", "name", "arg", "module"))
    return [name for name in names if isinstance(name, str)]


def test_only_targets_name_a_backend() -> None:
    found = []
    for path in modules():
        if part_of(path) == "targets":
            continue
        tree = ast.parse(path.read_text())
        docs = _docstrings(tree)
        words = [(node, word) for node in ast.walk(tree) if node not in docs for word in _words(node)]
        found += [(path, node.lineno, word) for node, word in words if _BACKENDS.search(word)]  # type: ignore[attr-defined]
    assert found == []


def test_backend_names_are_detected() -> None:
    tree = ast.parse('def f(htp):\n    """About HTP."""\n    return x.qnn_option, "TensorRT says"\n')
    words = [word for node in ast.walk(tree) if node not in _docstrings(tree) for word in _words(node)]
    assert [word for word in words if _BACKENDS.search(word)] == ["htp", "qnn_option", "TensorRT says"]


def test_no_field_of_a_target_is_set_by_one_target_only() -> None:
    """What only one target has belongs in its facts, its table or a capability."""
    all_targets = [open_target(name) for name in FAMILIES]
    for field in dataclasses.fields(Target):
        if field.default is not dataclasses.MISSING:
            names = [target.name for target in all_targets if getattr(target, field.name) != field.default]
            assert len(names) > 1, f"{field.name} is set by {names} only"


def test_no_test_module_is_imported_as_a_library() -> None:
    """What tests and benches share is in tests/networks and in modules that hold no tests."""
    root = Path(__file__).parents[1]
    for path in sorted([*(root / "tests").rglob("*.py"), *(root / "bench").rglob("*.py")]):
        if ".venvs" in path.parts:  # the environments that benches make
            continue
        names = [name for name in imports_of(path) if name.startswith("tests.")]
        assert [name for name in names if re.search(r"\.test_\w+(\.|$)", _module(root, name))] == [], path
        if path.is_relative_to(root / "bench"):
            assert [name for name in names if not re.match(r"tests\.(networks|equality)\b", name)] == [], path


def _module(root: Path, name: str) -> str:
    """The module of an import, without the name that is taken from it."""
    place = root.joinpath(*name.split("."))
    return name if place.is_dir() or place.with_suffix(".py").exists() else name.rpartition(".")[0]


def test_no_shell_and_no_catch_all_folders() -> None:
    for path in modules():
        assert "shell=True" not in path.read_text(), path
        assert not {"utils", "common", "helpers", "base", "manager"} & set(path.with_suffix("").parts[-3:]), path


def test_public_names() -> None:
    assert sorted(dovetail.__all__) == [
        "BackendError",
        "InputError",
        "Result",
        "SensitivityResult",
        "__version__",
        "check",
        "fit",
        "from_torch",
        "load_result",
        "load_sensitivity",
        "lpbq_scales",
        "repair",
        "sensitivity",
        "verify_device",
    ]
    for name in dovetail.__all__:
        assert getattr(dovetail, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = dovetail.nothing


def test_help_imports_nothing_heavy() -> None:
    code = "import sys; import dovetail.cli.main; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"onnx", "onnx_ir", "onnxruntime", "onnxscript", "numpy", "rich"} & set(loaded)


@pytest.mark.parametrize(
    "module",
    ["dovetail.targets.qnn_htp.session", "dovetail.targets.ort_cpu.build", "dovetail.targets.tensorrt.build"],
)
def test_a_child_process_imports_little(module: str) -> None:
    code = f"import sys; import dovetail.targets.child; import {module}; print(' '.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"onnx", "onnx_ir", "onnxscript", "sympy"} & set(loaded)


def test_help_is_fast() -> None:
    """Measured in CPU time, so that other load on the machine does not matter."""
    assert min(_cpu_seconds() for _ in range(3)) < 0.5


def _cpu_seconds() -> float:
    before = os.times()
    subprocess.run([sys.executable, "-m", "dovetail.cli", "--help"], capture_output=True, check=True)
    after = os.times()
    return after.children_user - before.children_user + after.children_system - before.children_system


def test_a_changed_tensor_is_described_with_what_was_planned_and_what_was_found() -> None:
    """Only ``backend.changed`` makes that outcome, so that every target says both in the same words."""
    compared = re.compile(r"(is|is not|==|!=|in) Outcome\.CHANGED|\[Outcome\.CHANGED\]")
    for path in modules():
        made = [line for line in path.read_text().splitlines() if "Outcome.CHANGED" in compared.sub("", line)]
        assert len(made) == (path.name == "backend.py"), (path, made)
