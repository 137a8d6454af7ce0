"""The examples of CONTRIBUTING.md: the quoted code runs, and equals the code in the files."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest

import dovetail
from dovetail import targets
from dovetail.encoding import DType
from dovetail.errors import InputError
from tests.worked_example import knob

HERE = Path(__file__).parent
CONTRIBUTING = (HERE.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
BODY = """
<ir_version: 10, opset_import: ["": 17]>
g (float[1,4] image) => (float[1,2] logits)
<float[4,4] w = {1,-2,3,4, -5,6,7,8, 2,1,-1,3, 0,0,0,0}, float[4] b = {0.1,-0.2,0.3,0},
 float[4,2] v = {1,-2, 3,4, -5,6, 7,8}, float[2] c = {0.5,-0.5}>
{
    hidden = Gemm(image, w, b)
    active = Relu(hidden)
    logits = Gemm(active, v, c)
}
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model file; both examples are registered, as with one line each in ``targets/__init__.py``."""
    monkeypatch.setitem(targets.FAMILIES, "example", "tests.worked_example.target")
    monkeypatch.setitem(targets.FAMILIES, "example-symmetric", "tests.worked_example.precision")
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(BODY), path)
    return path


def images(outlier: float = 1.0) -> dict[str, np.ndarray]:
    """Random samples; a large ``outlier`` makes the range too wide through a channel that the model ignores."""
    samples = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
    samples[:, 3] *= outlier
    return {"image": samples}


def fit(model: Path, target: str, outlier: float = 1.0, **options: object) -> dovetail.Result:
    return dovetail.fit(model, target=target, calibration=images(outlier), output=model.parent / "run", **options)


def test_the_target_passes_every_verdict(model: Path) -> None:
    result = fit(model, "example")
    assert {name: str(verdict.status) for name, verdict in result.verdicts.items()} == dict.fromkeys(
        ("normalized", "compiled", "fidelity", "numerics", "accuracy"), "pass"
    )
    rows = {row.tensor: row for row in result.plan if row.edge is None}
    assert rows["active"].dtype is DType.U8
    with pytest.raises(InputError, match="target example has no suffix or option 'fast'"):
        fit(model, "example:fast", force=True)


@pytest.mark.parametrize(("outlier", "taken", "dtype"), [(1.0, "quantized", DType.U8), (200.0, "float", DType.F32)])
def test_the_knob_decides_by_what_it_measures(model: Path, outlier: float, taken: str, dtype: DType) -> None:
    result = fit(model, "example", outlier)
    (decision,) = result.decisions
    assert (decision.knob, decision.place.tensor, decision.taken, decision.rule) == (
        knob.NAME,
        "image",
        taken,
        knob.CRITERION,
    )
    quantized_db, float_db = (alternative.figures["simulation_sqnr_db"] for alternative in decision.alternatives)
    assert (float_db - quantized_db > knob.GAIN_DB) == (taken == "float")
    (row,) = [row for row in result.plan if row.tensor == "image" and row.edge is None]
    assert row.dtype is dtype
    assert str(row.why) == ("measured" if taken == "float" else "precision")
    assert not result.failed


def test_the_precision_is_in_the_plan(model: Path) -> None:
    result = fit(model, "example-symmetric", precision="w8a8-symmetric")
    assert not result.failed
    quantized = [row for row in result.plan if row.edge is None and row.dtype.is_quantized]
    assert {(row.dtype, row.symmetric, row.zero_point) for row in quantized} == {(DType.S8, True, 0)}
    assert {"image", "active"} <= {row.tensor for row in quantized}
    with pytest.raises(InputError, match=r"unknown precision 'w8a8-symmetric' for target example; .* w8a8"):
        fit(model, "example", precision="w8a8-symmetric", force=True)


QUOTES = re.findall(r"<!-- (\S+\.py) -->\n```python\n(.*?)```", CONTRIBUTING, re.DOTALL)


def test_every_example_is_quoted() -> None:
    assert {name for name, _ in QUOTES} == {
        f"tests/worked_example/{name}.py" for name in ("knob", "target", "precision")
    }
    assert CONTRIBUTING.count("```python") == len(QUOTES), "a block of Python without the name of its file"


@pytest.mark.parametrize(("name", "text"), QUOTES, ids=[f"{name}:{n}" for n, (name, _) in enumerate(QUOTES)])
def test_quoted_code_is_in_its_file(name: str, text: str) -> None:
    assert text in (HERE.parent / name).read_text(encoding="utf-8")
