"""A small model with an outlier, fitted with ``--precision auto``: for the tests of mixed precision."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

import dovetail
from dovetail.report.result import Result
from tests.networks.outlier_layers import outlier_layers, outlier_samples

DATA = outlier_samples(40)


def layers() -> ir.Model:
    return outlier_layers(30, 8)


def saved(folder: Path) -> Path:
    path = folder / "model.onnx"
    ir.save(layers(), path)
    return path


def fitted(folder: Path, name: str = "run", **options: object) -> Result:
    return dovetail.fit(
        saved(folder), target="ort-cpu", precision="auto", calibration=DATA, output=folder / name, **options
    )
