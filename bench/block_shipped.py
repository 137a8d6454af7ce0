"""The shipped ViTs with int4 weights, per channel and in blocks: SQNR against float and drop of top-1."""

from __future__ import annotations

from pathlib import Path

import dovetail
from dovetail import zoo
from dovetail.report.result import Result

NETWORKS = ("vit_digits", "vit_fashion")
PRECISIONS = ("w4a16", "w4a16-bq", "w4a16-lpbq")
# The range method and the rounding of weights.
METHODS = (("minmax", "nearest"), ("mse", "nearest"), ("mse", "second-order"))
EMULATED = "qnn-htp:sm8550"


def print_shipped(folder: Path) -> None:
    """Print a row per network and method on ort-cpu, and one of the emulator."""
    print("shipped ViTs on held-out images (ort-cpu): SQNR against float / drop of top-1 in points")
    print(f"  {'':12}{'range':8}{'rounding':14}{''.join(f'{precision:>18}' for precision in PRECISIONS)}")
    for name in NETWORKS:
        for method, rounding in METHODS:
            runs = [folder / f"{name}_{method}_{rounding}_{precision}" for precision in PRECISIONS]
            row = [
                _figures(_fit(name, "ort-cpu", precision, method, rounding, run))
                for precision, run in zip(PRECISIONS, runs, strict=True)
            ]
            print(f"  {name:12}{method:8}{rounding:14}{''.join(f'{figures:>18}' for figures in row)}", flush=True)
    print("vit_fashion on the emulator, mse: SQNR of one image against float (of the simulation)")
    for precision in ("w4a16", "w4a16-lpbq"):
        result = _fit("vit_fashion", EMULATED, precision, "mse", "nearest", folder / f"emulated_{precision}")
        figures = result.metrics.sqnr_db
        emulated, simulated = (
            min(value for value in (outputs or {}).values() if value is not None)
            for outputs in (figures.target_vs_float, figures.simulation_where_target_ran)
        )
        print(f"  {precision:14}{emulated:.1f} dB ({simulated:.1f})", flush=True)


def _fit(name: str, target: str, precision: str, method: str, rounding: str, run: Path) -> Result:
    shipped = zoo.load(name)
    return dovetail.fit(
        shipped.model_path,
        target=target,
        calibration=shipped.calib(),
        evaluation={**shipped.eval(), **shipped.targets()},
        metric=shipped.metric,
        precision=precision,
        range=method,
        rounding=rounding,
        baselines="none",
        output=run,
    )


def _figures(result: Result) -> str:
    sqnr_db = min(value for value in result.metrics.sqnr_db.simulation_vs_float.values() if value is not None)
    if result.metrics.accuracy is None:
        raise ValueError("the fit measured no accuracy")
    figures = result.metrics.accuracy.figures
    drop = 100 * (figures["float"]["top1"] - figures["simulation"]["top1"])
    return f"{sqnr_db:.1f} dB / {drop:.1f}"
