"""``dovetail check`` needs no backend package: in a process in which none can be imported it finds the same."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import dovetail
from dovetail import zoo
from dovetail.targets import FAMILIES

REPROS = Path(__file__).parents[1] / "repros"
TARGETS = ("ort-cpu", "qnn-htp:sm8550", "qairt:2.33/v75", "xnnpack", "tensorrt:sm89")
MODELS = [REPROS / "dig_qnn_a16w8.onnx", zoo.load("detector_scenes").model_path]
# What the extras install: everything that is no dependency of the core.
PACKAGES = {
    "onnxruntime_qnn": "onnxruntime-qnn",
    "tensorrt_rtx": "tensorrt-rtx-cu12",
    "executorch": "executorch",
    "torch": "torch",
    "torchao": "torchao",
    "transformers": "transformers",
    "onnxscript": "onnxscript",
    "PIL": "pillow",
}
SCRIPT = """
import importlib.metadata, json, sys
packages, targets, models = json.loads(sys.argv[1])

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

def distribution(name, original=importlib.metadata.Distribution.from_name):
    if name in packages.values():
        raise importlib.metadata.PackageNotFoundError(name)
    return original(name)

sys.meta_path.insert(0, Missing())
importlib.metadata.Distribution.from_name = distribution
import dovetail
found = [[[f.code, str(f.place), f.message] for f in dovetail.check(m, target=t)] for t in targets for m in models]
from dovetail.targets import open_target
available = [t for t in targets if open_target(t).backend.probe().available]
json.dump([found, available], sys.stdout)
"""


def test_no_package_of_a_backend_is_needed() -> None:
    targets, models = TARGETS, [str(path) for path in MODELS]
    request = json.dumps([PACKAGES, targets, models])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, request], capture_output=True, text=True, check=False, env={**os.environ}
    )
    assert done.returncode == 0, done.stderr
    found, available = json.loads(done.stdout)
    assert available == ["ort-cpu"]  # no target can be opened that needs a package
    expected = [
        [[f.code, str(f.place), f.message] for f in dovetail.check(m, target=t)] for t in targets for m in models
    ]
    assert found == expected
    assert all(any(found[i : i + len(models)]) for i in range(len(models), len(found), len(models)))


def test_every_target_is_checked() -> None:
    assert [target.partition(":")[0] for target in TARGETS] == list(FAMILIES)


def test_the_packages_are_those_of_the_extras() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = [lines for extra, lines in project["optional-dependencies"].items() if extra not in ("dev", "all")]
    assert {re.split(r"[=<>]", line)[0] for lines in extras for line in lines} == set(PACKAGES.values())
