"""``check --encodings``: the caller's own file is judged as it goes to the converter, not as ``fit`` mends it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import dovetail
from dovetail import rule_docs as docs
from dovetail.encoding import Array, Granularity
from dovetail.encodings.read import read_encodings
from dovetail.encodings.records import TensorEncoding
from dovetail.encodings.shapes import model_tensors, with_model
from dovetail.encodings_run import check_with_encodings
from dovetail.errors import InputError
from dovetail.finding import Finding, Severity
from dovetail.model.edit import constant_of
from dovetail.model.read import read
from dovetail.targets.qairt.export import encodings_file
from tests.backends.qairt.encodings_files import MODEL, SAMPLES, edited, findings
from tests.rules.cases import codes_in, findings_in

FALLBACK = {"input_list": "0", "float_fallback": "1", "float_bitwidth": "16"}
NEW = {"Q727", "Q728", "Q729", "Q730"}
PER_CHANNEL = ("w8a16_0.6.1", "w8a16_1.0.0", "w8a16_2.0.0", "w4a16_pc_0.6.1", "w4a16_pc_1.0.0", "w4a16_pc_2.0.0")
# No plan can be made from blocks of two, as the LPBQ samples have; for this SDK that they have blocks is an error.
READS_NO_BLOCKS = "qairt:2.42/v73"
LPBQ = ("w4a16_lpbq_1.0.0", "w4a16_lpbq_2.0.0")


def changed(sample: str, folder: Path, edit: Callable[[TensorEncoding], TensorEncoding], name: str = "mm.w") -> Path:
    """A sample with one entry changed, in the version that it has."""
    model = read(MODEL, {})
    encodings = with_model(read_encodings(SAMPLES / f"{sample}.json"), model_tensors(model))
    entries = {**encodings.entries, name: edit(encodings.entries[name])}
    path = folder / "changed.json"
    path.write_bytes(encodings_file(model, entries, encodings.version))
    return path


def with_scale(scale: float) -> Callable[[TensorEncoding], TensorEncoding]:
    """Set the scale of the second channel of a weight."""

    def edit(entry: TensorEncoding) -> TensorEncoding:
        scales = np.array(entry.scale)
        scales.reshape(-1)[1] = scale
        return replace(entry, scale=scales)

    return edit


def as_one_scale(scale: float) -> Callable[[TensorEncoding], TensorEncoding]:
    """Make the entry of a weight one with this scale for all channels."""

    def edit(entry: TensorEncoding) -> TensorEncoding:
        zero_point = np.zeros((), np.int64)
        whole = replace(entry, granularity=Granularity.TENSOR, axis=None, zero_point=zero_point, scale=np.array(scale))
        return replace(whole, symmetric=True)

    return edit


def scales_of(sample: str) -> tuple[float, float, Array]:
    """The scales of the input and the output of the MatMul of the sample, and the values of its bias."""
    entries, model = read_encodings(SAMPLES / f"{sample}.json").entries, read(MODEL, {})
    bias = constant_of(model.graph.initializers["mm.b"])
    assert bias is not None
    return float(entries["relu_out"].scale), float(entries["add_out"].scale), bias


def case(name: str, folder: Path) -> dict[str, Finding]:
    """The findings on a case, the last one of every code."""
    code, kind, *_ = name.split(".")
    text = docs.case_texts(code, kind)[f"{name}.onnxtxt"]
    return {finding.code: finding for finding in findings_in(text, folder)}


def test_a_separate_add_is_found_although_fit_would_make_a_gemm(tmp_path: Path) -> None:
    file = SAMPLES / "w8a16_1.0.0_int32bias.json"
    (reported,) = findings(file, "qairt:2.41/v73")["Q721"].values()
    assert (str(reported.place), reported.severity) == ("matmul", Severity.ERROR)
    assert findings(file)["Q721"]["matmul"].severity is Severity.WARNING  # 2.33, for which nothing is known
    assert "matmul" in findings(file, **FALLBACK)["Q721"]
    assert "Q721" not in findings(edited(tmp_path), **FALLBACK)  # without an entry of its bias, the layer is in float


def test_islands_of_the_file(tmp_path: Path) -> None:
    (several,) = findings(edited(tmp_path), "qairt:2.41/v73", **FALLBACK)["Q724"].values()
    assert several.numbers == {"islands": 2, "boundaries": 3}
    assert "4 float operators are 2 islands" in several.message  # Conv and Relu, MatMul and Add
    assert "Q724" not in findings(edited(tmp_path), "qairt:2.41/v73")  # calibrated: nothing is in float
    one = edited(tmp_path, without=("y", "add_out", "relu_out", "mm.w"))
    assert "Q724" not in findings(one, "qairt:2.41/v73", **FALLBACK)


def with_constant_nodes(model: onnx.ModelProto, folder: Path) -> Path:
    """The model with a Constant node in place of every initializer."""
    tensors = model.graph.initializer
    constants = [onnx.helper.make_node("Constant", [], [t.name], f"of {t.name}", value=t) for t in tensors]
    nodes = [*constants, *model.graph.node]
    del model.graph.initializer[:], model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, folder / "constants.onnx")
    return folder / "constants.onnx"


@pytest.mark.parametrize("without", [(), ("y",), ("y", "add_out")])
def test_constant_nodes_are_no_operators(without: tuple[str, ...], tmp_path: Path) -> None:
    file, values = edited(tmp_path, without=without), {"target": "qairt:2.41/v73", "option": FALLBACK}
    model = with_constant_nodes(onnx.load(MODEL), tmp_path)
    found = [f for f in check_with_encodings(model, values, encodings=file) if f.code in ("Q724", "Q730")]
    expected = findings(file, "qairt:2.41/v73", **FALLBACK)
    assert [f.code for f in found] == [code for code in expected if code in ("Q724", "Q730")]
    for finding in found:
        (same,) = expected[finding.code].values()
        assert (finding.message, finding.place) == (same.message, same.place)


def test_a_constant_that_two_islands_share_does_not_connect_them(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[1,4] x) => (float[1,4] y) <float[4] k = {1, 2, 3, 4}>
        { [first] a = Mul(x, k)  [between] b = Sigmoid(a)  [middle] c = Sigmoid(b)  [last] y = Mul(c, k) }"""
    grid = {"min": 0.0, "max": 1.0, "offset": 0, "scale": 1 / 65535}
    entry = [{"bitwidth": 16, "dtype": "int", "is_symmetric": "False", **grid}]
    file = tmp_path / "encodings.json"
    activations = dict.fromkeys(("x", "a", "b", "c", "y"), entry)
    file.write_text(json.dumps({"version": "0.6.1", "activation_encodings": activations, "param_encodings": {}}))
    model = with_constant_nodes(onnx.parser.parse_model(text), tmp_path)
    values = {"target": "qairt:2.41/v73", "option": FALLBACK, "precision": "w8a16"}
    found = check_with_encodings(model, values, encodings=file)
    (islands,) = [finding for finding in found if finding.code == "Q724"]
    assert (str(islands.place), islands.numbers["islands"]) == ("first", 2)


@pytest.mark.parametrize("sample", [*PER_CHANNEL, *LPBQ])
def test_a_dead_channel_is_found_in_every_version(sample: str, tmp_path: Path) -> None:
    source, output, _ = scales_of(sample)
    limit = 2.0**-24 * output / source
    (finding,) = findings(changed(sample, tmp_path, with_scale(0.99 * limit)), READS_NO_BLOCKS)["Q727"].values()
    assert (str(finding.place), finding.severity) == ("matmul", Severity.ERROR)
    assert finding.numbers["channels"] == 1
    assert finding.numbers["limit"] == pytest.approx(limit, rel=1e-5)
    assert f"1 of 6 scales of 'mm.w' are at most {limit:.3g}" in finding.message
    assert f"raise them to {8 * limit:.3g}" in finding.fix


@pytest.mark.parametrize("sample", ["w8a16_0.6.1", "w8a16_1.0.0", "w8a16_2.0.0"])
def test_the_limit_for_a_weight_with_one_scale(sample: str, tmp_path: Path) -> None:
    source, output, _ = scales_of(sample)
    limit = 2.0**-24 * output / source
    (finding,) = findings(changed(sample, tmp_path, as_one_scale(0.99 * limit)))["Q727"].values()
    assert "1 of 1 scales" in finding.message
    assert "Q727" not in findings(changed(sample, tmp_path, as_one_scale(1.01 * limit)))


@pytest.mark.parametrize("sample", [*PER_CHANNEL, *LPBQ])
def test_a_bias_beyond_int32_is_found_in_every_version(sample: str, tmp_path: Path) -> None:
    source, _, bias = scales_of(sample)
    fits = abs(float(bias[1])) / 2.0**31 / source
    (finding,) = findings(changed(sample, tmp_path, with_scale(0.99 * fits)), READS_NO_BLOCKS)["Q728"].values()
    assert (str(finding.place), finding.numbers["channels"]) == ("matmul", 1)
    assert finding.numbers["steps"] == pytest.approx(2.0**31 / 0.99, rel=1e-5)
    assert "by a factor of up to 1.01" in finding.fix
    assert "Q728" not in findings(changed(sample, tmp_path, with_scale(1.01 * fits)), READS_NO_BLOCKS)


def test_layers_in_float_have_no_integer_sums(tmp_path: Path) -> None:
    file = changed("w8a16_0.6.1", tmp_path, with_scale(1e-14))
    assert {"Q727", "Q728"} <= set(findings(file))
    assert not {"Q727", "Q728"} & set(findings(file, **FALLBACK))  # its bias has no entry


@pytest.mark.parametrize(("name", "has"), [("Q729.bad", "scale 1e-05 and zero point 0"), ("Q729.bad.2", "scale 2e-05")])
def test_a_replaced_output_names_the_entry_and_the_fixed_values(name: str, has: str, tmp_path: Path) -> None:
    finding = case(name, tmp_path)["Q729"]
    fixed = "scale 1.52588e-05 and zero point 0" if name == "Q729.bad" else "scale 3.05176e-05 and zero point 32768"
    assert (str(finding.place), finding.severity) == ("y", Severity.WARNING)
    assert re.search(f"'y', the output of .* has an entry with {has}", finding.message)
    assert f"replace them with {fixed}" in finding.message
    assert fixed in finding.fix
    assert "rule Q109" in finding.message  # where it was measured
    assert "inferred" in finding.message


@pytest.mark.parametrize("name", ["Q727.bad", "Q728.bad", "Q728.bad.2", "Q729.bad", "Q729.bad.2"])
def test_fit_with_the_same_file_mends_it(name: str, tmp_path: Path) -> None:
    code, kind, *_ = name.split(".")
    text = docs.case_texts(code, kind)[f"{name}.onnxtxt"]
    assert code in codes_in(findings_in(text, tmp_path))  # writes the two files
    model, file, run = tmp_path / "model.onnx", tmp_path / "encodings.json", tmp_path / "run"
    dovetail.fit(model, target="qairt:2.33/v75", encodings=file, output=run)
    written = run / "qairt" / "fallback"
    values = {"target": "qairt:2.33/v75", "option": FALLBACK}
    after = check_with_encodings(written / "model.onnx", values, encodings=written / "encodings.json")
    assert not NEW & codes_in(after)


def test_one_finding_counts_what_falls_back_to_float(tmp_path: Path) -> None:
    (finding,) = findings(edited(tmp_path, without=("y",)), **FALLBACK)["Q730"].values()
    assert (str(finding.place), finding.severity) == ("encodings", Severity.NOTE)
    assert finding.numbers == {"tensors": 3, "operators": 5}
    assert "3 of 12 tensors have no entry and become float16 ('conv.b', 'mm.b', 'y')" in finding.message
    assert "5 of 7 operators are predicted to compute in float" in finding.message
    left_out = ("y", "add_out", "relu_out", "mm.w")
    (many,) = findings(edited(tmp_path, without=left_out), **FALLBACK)["Q730"].values()
    assert "and 1 more)" in many.message
    assert "Q730" not in findings(edited(tmp_path, without=("y",)))
    assert "Q730" not in findings(SAMPLES / "w8a16_1.0.0_int32bias.json", **FALLBACK)


@pytest.mark.parametrize("sample", sorted(path.name for path in SAMPLES.glob("w8a16*.json")))
def test_what_aimet_wrote_gives_no_false_alarm(sample: str) -> None:
    assert not NEW & set(findings(SAMPLES / sample))
    assert NEW & set(findings(SAMPLES / sample, **FALLBACK)) <= {"Q730"}


def test_an_entry_that_does_not_fit_its_tensor_is_an_error_beside_others(tmp_path: Path) -> None:
    file = tmp_path / "encodings.json"
    document = json.loads((SAMPLES / "w8a16_1.0.0.json").read_bytes())
    entry = next(entry for entry in document["param_encodings"] if entry["name"] == "mm.w")
    entry["scale"], entry["offset"] = entry["scale"][:5], entry["offset"][:5]
    file.write_text(json.dumps(document))
    with pytest.raises(InputError, match=r"'mm.w'.* it has 5 scales"):  # although Q721 is an error as well
        findings(file, "qairt:2.41/v73")
