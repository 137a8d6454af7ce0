"""Qualcomm HTP: the vendor's estimates on soc 52 beside FP16 and a naive export, and the shipped models emulated.

``python -m bench.htp [--emulate N] [part ...]``; the parts are ``vit``, ``block`` and ``shipped``.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

import dovetail
from bench.vit_export import EXPORTERS, WINDOWS, export_block, export_vit
from bench.vit_tiny import pictures
from dovetail import zoo
from dovetail.calibrate.user_code import load_function
from dovetail.plan.rows import read_plan, write_plan
from dovetail.report.result import Result
from dovetail.stage_files import load_passed

SOC = "qnn-htp:soc52"
PHONE = "qnn-htp:sm8550"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.htp", description=__doc__)
    parser.add_argument("part", nargs="*", choices=["vit", "block", "shipped", []], help="all if none is named")
    parser.add_argument("--emulate", type=int, default=100, help="images per shipped model and precision")
    given = parser.parse_args()
    parts = given.part or ["vit", "block", "shipped"]
    with tempfile.TemporaryDirectory(prefix="dovetail-bench-") as name:
        if "vit" in parts:
            for exporter in EXPORTERS:
                images = {"x": pictures(4)}
                _table(f"ViT-tiny, {exporter}", export_vit(exporter, Path(name)), images, Path(name) / exporter, {})
        if "block" in parts:
            rng = np.random.default_rng(0)
            tokens = {"x": rng.standard_normal((4, *WINDOWS)).astype(np.float32)}
            path = export_block(Path(name))
            _table("DINOv2-S block [4,257,384], vtcm 8", path, tokens, Path(name) / "block", {"vtcm_mb": "8"})
        if "shipped" in parts:
            _shipped(Path(name) / "shipped", given.emulate)


def _table(title: str, path: Path, data: dict[str, np.ndarray], runs: Path, option: dict[str, str]) -> None:
    """Every variant of one model on soc 52, in us and against FP16 of the normalized graph."""
    print(f"{title}: the vendor's estimate on soc 52, not a measurement")

    def fit(label: str, **options: object) -> Result:
        result = dovetail.fit(path, target=SOC, calibration=data, output=runs / label, option=option, **options)
        bad = [f"{key}: {v.reason}" for key, v in result.verdicts.items() if v.status == "fail"]
        for reason in bad:
            print(f"  {label}: FAIL {reason}")
        return result

    runs.mkdir(parents=True, exist_ok=True)
    narrow = fit("narrow", precision="w8a16", operands="narrow", baselines="all")
    wide = fit("wide", precision="w8a16", operands="wide", baselines="none")
    value = fit("value", plan=_wide_on_values(runs), baselines="none")
    auto = fit("auto", precision="w8a16", baselines="none")
    small = fit("w8a8", precision="w8a8", baselines="none")
    estimates = {name: each.mid_us for name, each in narrow.metrics.latency_estimate_us.items()}
    rows = {
        "naive w8a16 (onnxruntime.quantization)": estimates.get("naive"),
        "fp16 of the normalized graph": estimates.get("fp16"),
        "w8a16, 8-bit second operands": estimates.get("fitted"),
        "w8a16, s16 on V only": _fitted_us(value),
        "w8a16, s16 on both": _fitted_us(wide),
        "w8a16, chosen": _fitted_us(auto),
        "w8a8": _fitted_us(small),
    }
    half = estimates.get("fp16")
    for label, us in rows.items():
        ratio = f"{us / half:.2f}x" if us and half else "-"
        print(f"  {label:40} {us if us is not None else 'refused':>8} us {ratio:>7} of fp16")
    print(flush=True)


def _fitted_us(result: Result) -> int | None:
    estimate = result.metrics.latency_estimate_us.get("fitted")
    return None if estimate is None else estimate.mid_us


def _wide_on_values(runs: Path) -> Path:
    """A plan with the second operand of every other product, attention by V, wide."""
    narrow, wide = read_plan(runs / "narrow" / "plan.json"), read_plan(runs / "wide" / "plan.json")
    model, _ = load_passed(runs / "narrow" / "stages" / "rewritten.onnx")
    order = {node.name: number for number, node in enumerate(model.graph)}
    different = sorted((e for e in wide.edges if wide.edges[e] != narrow.edges.get(e)), key=lambda e: order[e.node])
    softmaxed = {n.name for n in model.graph if n.op_type == "MatMul" and _reads_softmax(n)}
    chosen = {edge: wide.edges[edge] for edge in different if edge.node in softmaxed}
    path = runs / "value.json"
    write_plan(replace(narrow, edges={**narrow.edges, **chosen}), model, path)
    return path


def _reads_softmax(node: object) -> bool:
    """Whether the first operand of a product comes from a Softmax, through layout at most."""
    value = node.inputs[0]  # type: ignore[attr-defined]
    while (maker := value.producer()) is not None and maker.op_type in ("Reshape", "Transpose", "Split", "Slice"):
        value = maker.inputs[0]
    return maker is not None and maker.op_type == "Softmax"


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
            apart = result.metrics.sqnr_db.target_vs_simulation or {}
            figures = result.metrics.accuracy_emulated.figures if result.metrics.accuracy_emulated else {}
            worst = min((value for value in apart.values() if value is not None), default=float("nan"))
            said = "  ".join(f"{way} {next(iter(each.values())):.4f}" for way, each in figures.items())
            verdicts = " ".join(f"{key}={v.status}" for key, v in result.verdicts.items())
            print(
                f"  {name:16} {precision:6} target against simulation {worst:5.1f} dB  {said}  {verdicts}", flush=True
            )


if __name__ == "__main__":
    main()
