"""The measured process of ``bench.real_networks``: one network on one target."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.networks.packaged import PACKAGED
from tests.networks.pretrained_checks import figures_of, fit_pretrained, is_emulated, not_passed
from tests.networks.wheels import NotFetched

from bench.child import run_request
from dovetail.errors import BackendError, InputError
from dovetail.report.result import Result

# More where few samples tell little: few lines of the classifier are not saturated, and the detector's SQNR in w8a8 is
# between 8 and 26 dB, depending on the page, in the simulation too. Of YOLOv8n all 69 crops that have a box, which come
# first: simulation and target are judged by the same 70 boxes. Four crops have five boxes, of which one is 20 %.
EMULATED_SAMPLES = {"ppocrv6-cls": 16, "ppocrv6-det": 16, "yolov8n": 69}
FEW_SAMPLES = 4


def child(request: dict[str, Any]) -> Mapping[str, Any]:
    """Fit what is requested; what refuses it is a sentence."""
    network, target = request["network"], request["target"]
    is_few = network in PACKAGED or not is_emulated(target)
    options = {} if is_few else {"emulate": EMULATED_SAMPLES.get(network, FEW_SAMPLES)}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        run = Path(folder) / "run"
        try:
            result = fit_pretrained(network, target, request["precision"], run, **options)
        except (InputError, BackendError, NotFetched) as error:
            return {"refused": str(error)}
    return _figures(result)


def _figures(result: Result) -> Mapping[str, Any]:
    sqnr_db, estimate = result.metrics.sqnr_db, result.metrics.latency_estimate_us.get("fitted")
    return {
        "statuses": {name: verdict.status.value for name, verdict in result.verdicts.items()},
        "not_passed": dict(not_passed(result)),
        "simulation_db": _lowest(sqnr_db.simulation_vs_float),
        "target_db": _lowest(sqnr_db.target_vs_float),
        "figures": {way: dict(figures) for way, figures in figures_of(result).items()},
        "estimate_us": None if estimate is None else estimate.mid_us,
    }


def _lowest(figures: Mapping[str, float | None] | None) -> float | None:
    return min((value for value in (figures or {}).values() if value is not None), default=None)


if __name__ == "__main__":
    run_request(child)
