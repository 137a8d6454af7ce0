"""Qualcomm HTP: the vendor's latency estimates on SoC 52, compared with FP16 and ``onnxruntime.quantization``; the
shipped models on the emulator.

``python -m bench.htp [--emulate N] [part ...]``; the parts are ``vit``, ``block``, ``detectors`` and ``shipped``.
``python -m bench.htp detectors --only RF-DETR,soc52`` fits some of the detectors.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from tests.networks.vit_tiny import pictures

import dovetail
from dovetail import zoo
from dovetail.backend import BaselineCase, Estimate
from dovetail.calibrate.user_code import load_function
from dovetail.finding import Status
from dovetail.plan.rows import read_plan, write_plan
from dovetail.report.result import Result
from dovetail.targets import open_target

SOC = "qnn-htp:soc52"
PHONE = "qnn-htp:sm8550"
AUTOMOTIVE = {"vtcm_mb": "8", "optimization": "3"}
NORMALIZED = "fp16 of the normalized graph"
PARTS = ("vit", "block", "detectors", "shipped")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.htp", description=__doc__)
    parser.add_argument("part", nargs="*", help=f"one or more of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--emulate", type=int, default=100, help="images to emulate per shipped model and precision")
    parser.add_argument("--layers", type=int, default=12, help="layers of the ViT-tiny")
    parser.add_argument("--tokens", type=int, default=257, help="tokens in each of the DINOv2-S block's four windows")
    parser.add_argument(
        "--only", default="", help="texts, separated by commas, that a row of the detectors has to have"
    )
    options = parser.parse_args(arguments)
    unknown = [part for part in options.part if part not in PARTS]
    if unknown:
        parser.error(f"unknown part {unknown[0]!r}; expected one of {', '.join(PARTS)}")
    parts = options.part or PARTS
    with tempfile.TemporaryDirectory(prefix="dovetail-bench-") as name:
        folder = Path(name)
        if "vit" in parts or "block" in parts:
            from tests.networks import vit_export  # needs torch
        if "vit" in parts:
            for exporter in vit_export.EXPORTERS:
                path = vit_export.vit(exporter, options.layers)
                _table(f"ViT-tiny, {exporter}", path, {"x": pictures(4)}, folder / exporter, {})
        if "block" in parts:
            shape = (4, options.tokens, 384)
            data = {"x": np.random.default_rng(0).standard_normal((4, *shape)).astype(np.float32)}
            title = f"DINOv2-S block {list(shape)}, 8 MB VTCM"
            _table(title, vit_export.block(shape), data, folder / "block", {"vtcm_mb": "8"})
        if "detectors" in parts:
            _detectors(folder / "detectors", options.only.split(","))
        if "shipped" in parts:
            _shipped(folder / "shipped", options.emulate)


def _table(title: str, path: Path, data: dict[str, np.ndarray], runs: Path, option: dict[str, str]) -> None:
    """Print the estimate of one model at every precision, and its ratio to FP16 and to the baseline ``naive``."""
    runs.mkdir(parents=True, exist_ok=True)

    def fit(label: str, baselines: str = "none", **options: Any) -> Result:
        result = dovetail.fit(
            path, target=SOC, calibration=data, output=runs / label, option=option, baselines=baselines, **options
        )
        for key, verdict in result.verdicts.items():
            if verdict.status is Status.FAIL:
                print(f"  {label}: {key} FAILS: {verdict.reason}")
        return result

    print(f"{title}: microseconds estimated by the vendor's compiler for SoC 52, not measured", flush=True)
    narrow = fit("w8a16_narrow", precision="w8a16", operand_bits="8", baselines="all")
    wide = fit("w8a16_wide", precision="w8a16", operand_bits="16")
    wide_values = fit("w8a16_values", plan=_wide_on_values(runs))
    auto = fit("w8a16", precision="w8a16")
    w8a8 = fit("w8a8", precision="w8a8", baselines="all")
    estimates = {f"{name} w8a16": estimate for name, estimate in narrow.metrics.latency_estimate_us.items()}
    estimates |= {f"{name} w8a8": estimate for name, estimate in w8a8.metrics.latency_estimate_us.items()}
    rows = {
        "naive w8a16 (onnxruntime.quantization)": estimates.get("naive w8a16"),
        "naive w8a8": estimates.get("naive w8a8"),
        "fp16 of the exported file": _fp16(runs / "exported", ir.load(path), path, option),
        NORMALIZED: _fp16(runs / "normalized", _normalized(runs), path, option),
        "fp16, rewritten": estimates.get("fp16 w8a16"),
        "w8a16, 8-bit second operands": estimates.get("fitted w8a16"),
        "w8a16, 16-bit V, 8-bit K": _fitted(wide_values),
        "w8a16, 16-bit second operands": _fitted(wide),
        "w8a16, --operand-bits auto": _fitted(auto),
        "w8a8": estimates.get("fitted w8a8"),
    }
    print(f"  {'':40}{'us':>8}{'vs fp16':>14}{'vs naive':>14}")
    for label, estimate in rows.items():
        ratios = (_ratio(estimate, rows[base]) for base in (NORMALIZED, next(iter(rows))))
        mid_us = "rejected" if estimate is None else estimate.mid_us
        print(f"  {label:40}{mid_us:>8}" + "".join(f"{ratio:>14}" for ratio in ratios))
    for result, precision in ((narrow, "w8a16"), (w8a8, "w8a8")):
        for name, reason in result.metrics.not_estimated.items():
            print(f"  no estimate of {name} {precision}: {reason}")
    print(flush=True)


def _ratio(estimate: Estimate | None, base: Estimate | None) -> str:
    """The ratio of two estimates, or how many operators have no cost in each where those counts differ."""
    if estimate is None or base is None:
        return "-"
    ratio = estimate.ratio_to(base)
    if ratio is None:
        return f"{estimate.ops_without_cost}/{base.ops_without_cost} uncosted"
    return f"{ratio:.3f}x"


def _fitted(result: Result) -> Estimate | None:
    return result.metrics.latency_estimate_us.get("fitted")


def _normalized(runs: Path) -> ir.Model:
    """Load the normalized graph, before any rewrite for this target."""
    return ir.load(runs / "w8a16_narrow" / "stages" / "normalized.onnx")


def _fp16(runs: Path, model: ir.Model, path: Path, option: dict[str, str]) -> Estimate | None:
    """Return the estimate of a float graph compiled in FP16; None if the compiler rejects it."""
    runs.mkdir(exist_ok=True)
    target = open_target(SOC, option)
    if not target.backend.baselines:
        return None
    return target.backend.baselines[0].build(BaselineCase(model, path, "fp16", (), {}), runs).estimate


def _wide_on_values(runs: Path) -> Path:
    """Write a plan with a 16-bit second operand for the MatMuls by V, and an 8-bit one for all others."""
    narrow, wide = (read_plan(runs / label / "plan.json") for label in ("w8a16_narrow", "w8a16_wide"))
    model = ir.load(runs / "w8a16_narrow" / "stages" / "rewritten.onnx")
    by_values = {node.name for node in model.graph if node.op_type == "MatMul" and _reads_softmax(node)}
    wide_edges = {edge: choice for edge, choice in wide.edges.items() if edge.node in by_values}
    path = runs / "values.json"
    write_plan(replace(narrow, edges={**narrow.edges, **wide_edges}), model, path)
    return path


def _reads_softmax(node: ir.Node) -> bool:
    """Whether the first operand of a MatMul comes from a Softmax, through Reshape, Transpose, Split and Slice only."""
    value = node.inputs[0]
    while value is not None and (producer := value.producer()) is not None:
        if producer.op_type not in ("Reshape", "Transpose", "Split", "Slice"):
            return producer.op_type == "Softmax"
        value = producer.inputs[0]
    return False


def _detectors(runs: Path, texts: Sequence[str]) -> None:
    """Fit RF-DETR's backbone at its real size, and both detectors at a small size, for a phone and a car SoC."""
    from tests.networks import backbones, detectors
    from tests.networks.htp_checks import fitted

    runs.mkdir(parents=True, exist_ok=True)
    networks = {
        "DINOv2-S, 4 layers": (backbones.large_dinov2(4), (1, 3, 512, 512)),
        **{name: (detectors.detector(name), shape) for name, (_, shape, _) in detectors.NETWORKS.items()},
    }
    print(f"detectors on {PHONE}, and on {SOC} with {AUTOMOTIVE}")
    print("dB: target vs simulation, worst output; us: the vendor's estimate, not measured")
    for name, (path, shape) in networks.items():
        for target, option in ((PHONE, {}), (SOC, AUTOMOTIVE)):
            for precision in ("w8a16", "w8a8"):
                row = f"{name:20}{target:16}{precision:7}"
                if not all(text in row for text in texts):
                    continue
                run = runs / f"{name}_{target.partition(':')[2]}_{precision}"
                result = fitted(
                    path, shape, run, target, precision, option=option, operand_bits="auto", baselines="all"
                )
                estimates = _estimates(result) if target == SOC else ""
                print(f"  {row}{_target_vs_simulation_db(result):6.1f} dB  {estimates}{_failures(result)}", flush=True)


def _estimates(result: Result) -> str:
    """Format the estimates of the fitted model, of FP16 and of ``naive``, and the fitted model's ratio to each."""
    estimates = result.metrics.latency_estimate_us
    cells = []
    for name in ("fitted", "fp16", "naive"):
        estimate = estimates.get(name)
        ratio = "" if name == "fitted" else f" ({_ratio(estimates.get('fitted'), estimate)})"
        cells.append(f"{name} rejected" if estimate is None else f"{name} {estimate.mid_us}{ratio}")
    return "  ".join(cells)


def _target_vs_simulation_db(result: Result) -> float:
    """The SQNR of the target against the simulation on the worst output."""
    sqnr_db = result.metrics.sqnr_db.target_vs_simulation or {}
    return min((value for value in sqnr_db.values() if value is not None), default=float("nan"))


def _failures(result: Result) -> str:
    failed = ", ".join(key for key, verdict in result.verdicts.items() if verdict.status is Status.FAIL)
    return f"  FAILS: {failed}" if failed else ""


def _shipped(runs: Path, count: int) -> None:
    """Print target vs simulation and the emulated accuracy of the trained models on a phone's HTP."""
    runs.mkdir(parents=True, exist_ok=True)
    print(f"shipped models on {PHONE}, {count} images emulated")
    for name in zoo.names():
        shipped = zoo.load(name)
        for precision in ("w8a16", "w8a8"):
            result = dovetail.fit(
                shipped.model_path,
                target=PHONE,
                precision=precision,
                range="mse",
                calibration=shipped.calib(),
                evaluation={**shipped.eval(), **shipped.targets()},
                metric=load_function(shipped.metric),
                emulate=count,
                output=runs / f"{name}_{precision}",
            )
            figures = result.metrics.accuracy_emulated.figures if result.metrics.accuracy_emulated else {}
            accuracy = "  ".join(f"{run} {next(iter(metric.values())):.4f}" for run, metric in figures.items())
            label = f"{name:16} {precision:6} target vs simulation {_target_vs_simulation_db(result):5.1f} dB"
            print(f"  {label}  {accuracy}{_failures(result)}", flush=True)


if __name__ == "__main__":
    main()
