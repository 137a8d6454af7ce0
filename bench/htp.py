"""Qualcomm HTP: the vendor's estimates on soc 52 beside FP16 and a naive export, and the shipped models emulated.

``python -m bench.htp [--emulate N] [part ...]``; the parts are ``vit``, ``block``, ``detectors`` and ``shipped``.
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
    parser.add_argument("part", nargs="*", help=f"{', '.join(PARTS)}; all if none is named")
    parser.add_argument("--emulate", type=int, default=100, help="images per shipped model and precision")
    parser.add_argument("--layers", type=int, default=12, help="of the ViT-tiny")
    parser.add_argument("--tokens", type=int, default=257, help="in each of the block's four windows")
    given = parser.parse_args(arguments)
    unknown = [part for part in given.part if part not in PARTS]
    if unknown:
        parser.error(f"no part is called {unknown[0]!r}; there is {', '.join(PARTS)}")
    parts = given.part or PARTS
    with tempfile.TemporaryDirectory(prefix="dovetail-bench-") as name:
        folder = Path(name)
        if "vit" in parts or "block" in parts:
            from tests.networks import vit_export  # needs torch
        if "vit" in parts:
            for exporter in vit_export.EXPORTERS:
                path = vit_export.vit(exporter, given.layers)
                _table(f"ViT-tiny, {exporter}", path, {"x": pictures(4)}, folder / exporter, {})
        if "block" in parts:
            shape = (4, given.tokens, 384)
            data = {"x": np.random.default_rng(0).standard_normal((4, *shape)).astype(np.float32)}
            title = f"DINOv2-S block {list(shape)}, vtcm 8"
            _table(title, vit_export.block(shape), data, folder / "block", {"vtcm_mb": "8"})
        if "detectors" in parts:
            _detectors(folder / "detectors")
        if "shipped" in parts:
            _shipped(folder / "shipped", given.emulate)


def _table(title: str, path: Path, data: dict[str, np.ndarray], runs: Path, option: dict[str, str]) -> None:
    """Every variant of one model on soc 52, and over FP16 of the normalized graph and over the naive export."""
    runs.mkdir(parents=True, exist_ok=True)

    def fit(label: str, baselines: str = "none", **options: Any) -> Result:
        result = dovetail.fit(
            path, target=SOC, calibration=data, output=runs / label, option=option, baselines=baselines, **options
        )
        for key, verdict in result.verdicts.items():
            if verdict.status is Status.FAIL:
                print(f"  {label}: {key} FAILS: {verdict.reason}")
        return result

    print(f"{title}: microseconds by the vendor's estimate on soc 52, not measured", flush=True)
    narrow = fit("w8a16_narrow", precision="w8a16", operand_bits="8", baselines="all")
    wide = fit("w8a16_wide", precision="w8a16", operand_bits="16")
    values = fit("w8a16_values", plan=_wide_on_values(runs))
    auto = fit("w8a16", precision="w8a16")
    small = fit("w8a8", precision="w8a8", baselines="all")
    found = {f"{name} w8a16": one for name, one in narrow.metrics.latency_estimate_us.items()}
    found |= {f"{name} w8a8": one for name, one in small.metrics.latency_estimate_us.items()}
    rows = {
        "naive w8a16 (onnxruntime.quantization)": found.get("naive w8a16"),
        "naive w8a8": found.get("naive w8a8"),
        "fp16 of the exported file": _fp16(runs / "exported", ir.load(path), path, option),
        NORMALIZED: _fp16(runs / "normalized", _normalized(runs), path, option),
        "fp16, rewritten": found.get("fp16 w8a16"),
        "w8a16, 8-bit second operands": found.get("fitted w8a16"),
        "w8a16, s16 on V only": _fitted(values),
        "w8a16, s16 on both": _fitted(wide),
        "w8a16, second operands as chosen": _fitted(auto),
        "w8a8": found.get("fitted w8a8"),
    }
    print(f"  {'':40}{'us':>8}{'of fp16':>14}{'of naive':>14}")
    for label, one in rows.items():
        ratios = (_ratio(one, rows[base]) for base in (NORMALIZED, next(iter(rows))))
        print(f"  {label:40}{'refused' if one is None else one.mid_us:>8}" + "".join(f"{each:>14}" for each in ratios))
    for result, precision in ((narrow, "w8a16"), (small, "w8a8")):
        for name, why in result.metrics.not_estimated.items():
            print(f"  no estimate of {name} {precision}: {why}")
    print(flush=True)


def _ratio(one: Estimate | None, base: Estimate | None) -> str:
    """One over the other; in words where the vendor's model leaves out other operators."""
    if one is None or base is None:
        return "-"
    ratio = one.ratio_to(base)
    if ratio is None:
        return f"{one.ops_without_cost}/{base.ops_without_cost} uncosted"
    return f"{ratio:.3f}x"


def _fitted(result: Result) -> Estimate | None:
    return result.metrics.latency_estimate_us.get("fitted")


def _normalized(runs: Path) -> ir.Model:
    """The graph as it is before any rewrite for this target."""
    return ir.load(runs / "w8a16_narrow" / "stages" / "normalized.onnx")


def _fp16(runs: Path, model: ir.Model, path: Path, option: dict[str, str]) -> Estimate | None:
    """The estimate of a float graph in FP16; None where it is refused."""
    runs.mkdir(exist_ok=True)
    target = open_target(SOC, option)
    if not target.backend.baselines:
        return None
    return target.backend.baselines[0].build(BaselineCase(model, path, "fp16", (), {}), runs).estimate


def _wide_on_values(runs: Path) -> Path:
    """A plan in which attention by V has a wide second operand, and every other product a narrow one."""
    narrow, wide = (read_plan(runs / f"w8a16_{width}" / "plan.json") for width in ("narrow", "wide"))
    model = ir.load(runs / "w8a16_narrow" / "stages" / "rewritten.onnx")
    by_values = {node.name for node in model.graph if node.op_type == "MatMul" and _reads_softmax(node)}
    chosen = {edge: choice for edge, choice in wide.edges.items() if edge.node in by_values}
    path = runs / "values.json"
    write_plan(replace(narrow, edges={**narrow.edges, **chosen}), model, path)
    return path


def _reads_softmax(node: ir.Node) -> bool:
    """Whether the first operand of a product comes from a Softmax, through layout at most."""
    value = node.inputs[0]
    while value is not None and (maker := value.producer()) is not None:
        if maker.op_type not in ("Reshape", "Transpose", "Split", "Slice"):
            return maker.op_type == "Softmax"
        value = maker.inputs[0]
    return False


def _detectors(runs: Path) -> None:
    """RF-DETR's backbone at its real sizes, and both detectors small and whole, on a phone and in a car."""
    from tests.networks import backbones, detectors
    from tests.networks.htp_checks import fitted

    runs.mkdir(parents=True, exist_ok=True)
    networks = {
        "DINOv2-S, 4 layers": (backbones.large_dinov2(), (1, 3, 512, 512)),
        **{name: (detectors.detector(name), shape) for name, (_, shape, _) in detectors.NETWORKS.items()},
    }
    print(f"detectors: {PHONE}, and {SOC} with {AUTOMOTIVE}; target against simulation; us by the vendor's estimate")
    for name, (path, shape) in networks.items():
        for target, option in ((PHONE, {}), (SOC, AUTOMOTIVE)):
            for precision in ("w8a16", "w8a8"):
                place = runs / f"{name}_{target.partition(':')[2]}_{precision}"
                result = fitted(
                    path, shape, place, target, precision, option=option, operand_bits="auto", baselines="all"
                )
                said = _estimates(result) if target == SOC else ""
                print(
                    f"  {name:20}{target:16}{precision:7}{_apart_db(result):6.1f} dB  {said}{_failures(result)}",
                    flush=True,
                )


def _estimates(result: Result) -> str:
    """The fitted model beside FP16 and the naive export, with its ratio to each."""
    found = result.metrics.latency_estimate_us
    words = []
    for name in ("fitted", "fp16", "naive"):
        one = found.get(name)
        ratio = "" if name == "fitted" else f" ({_ratio(found.get('fitted'), one)})"
        words.append(f"{name} refused" if one is None else f"{name} {one.mid_us}{ratio}")
    return "  ".join(words)


def _apart_db(result: Result) -> float:
    """How far the target is from the simulation on the worst output."""
    apart = result.metrics.sqnr_db.target_vs_simulation or {}
    return min((value for value in apart.values() if value is not None), default=float("nan"))


def _failures(result: Result) -> str:
    bad = ", ".join(key for key, verdict in result.verdicts.items() if verdict.status is Status.FAIL)
    return f"  FAILS: {bad}" if bad else ""


def _shipped(runs: Path, count: int) -> None:
    """The trained models on a phone's HTP: how far from the simulation, and the accuracy through the emulator."""
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
            said = "  ".join(f"{way} {next(iter(each.values())):.4f}" for way, each in figures.items())
            label = f"{name:16} {precision:6} target against simulation {_apart_db(result):5.1f} dB"
            print(f"  {label}  {said}{_failures(result)}", flush=True)


if __name__ == "__main__":
    main()
