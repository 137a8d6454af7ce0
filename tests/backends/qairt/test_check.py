"""``check --target qairt:SDK/CHIP --encodings FILE``: each known failure of the converter, with its tensors."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from dovetail.catalog import find_rule
from dovetail.cli.main import main
from dovetail.encoding import Granularity
from dovetail.encodings.read import read_encodings
from dovetail.encodings.records import Encodings, TensorEncoding
from dovetail.errors import InputError
from dovetail.finding import Severity
from dovetail.model.read import read
from dovetail.passes.infer_shapes import infer_shapes
from dovetail.rule_docs import explain
from dovetail.rules.check import check
from dovetail.rules.check_input import CheckInput
from dovetail.targets import open_target
from dovetail.targets.qairt.call import ConverterCall
from dovetail.targets.qairt.fact_table import fact_table, with_table
from dovetail.targets.qairt.facts import FACTS, fact, facts_about
from dovetail.targets.qairt.predict import Cause, predict
from dovetail.targets.qairt.rules.subject import conversion_of
from dovetail.targets.qairt.sdk import Answer, Confidence, Subject
from tests.backends.qairt.encodings_files import MODEL, SAMPLES, edited, findings
from tests.equality import model_from

FALLBACK = {"input_list": "0", "float_fallback": "1", "float_bitwidth": "16"}


@pytest.mark.parametrize("omitted", [("relu_out",), ("add_out", "y"), ("y", "mm.w")])
def test_exactly_the_omitted_tensors_silently_become_8_bit(omitted: tuple[str, ...], tmp_path: Path) -> None:
    found = findings(edited(tmp_path, without=omitted))
    assert set(found["Q711"]) == set(omitted)
    for name, finding in found["Q711"].items():
        assert finding.severity is Severity.ERROR
        assert f"{name!r} has no encoding and will silently become 8 bit" in finding.message
        assert "issue 4102" in finding.message
        assert "--float_fallback --float_bitwidth 16 and without --input_list" in finding.fix
    assert set(found["Q712"]) == {"rs", "tr"}
    assert set(found["Q713"]) == {"conv.b", "mm.b"}
    assert set(found["Q722"]) == {"conv_out", "mm_out"}


def test_outputs_that_only_move_data_are_as_precise_as_their_input(tmp_path: Path) -> None:
    as_input = findings(edited(tmp_path))["Q712"]
    assert "predicted to be uint16" in as_input["tr"].message
    assert Confidence.INFERRED in as_input["tr"].message
    assert "predicted to be uint8" in findings(edited(tmp_path, without=("relu_out",)))["Q712"]["tr"].message


def test_float_fallback_leaves_omitted_tensors_in_float16(tmp_path: Path) -> None:
    found = findings(edited(tmp_path, without=("y",)), **FALLBACK)
    assert "Q711" not in found
    assert "its layer to run in float" in found["Q713"]["conv.b"].message
    assert set(found) == {"Q712", "Q713", "Q722", "Q724", "Q730"}  # the layers of both biases are islands


def test_float_entries_fail_at_a_constant_behind_a_conv(tmp_path: Path) -> None:
    found = findings(edited(tmp_path, floats=("y",)))["Q714"]
    assert found["encodings"].severity is Severity.WARNING  # the sample has no such constant
    assert "'y'" in found["encodings"].message
    page = explain(find_rule("Q714"))
    assert "setQInfo" in page
    assert "QAIRT 2.33" in page


def test_2_0_0_on_an_old_sdk() -> None:
    (finding,) = findings(SAMPLES / "w8a16_2.0.0.json")["Q715"].values()
    assert finding.severity is Severity.ERROR
    assert "KeyError: 'param_encodings'" in finding.message
    assert "convert FILE --to 0.6.1" in finding.fix
    (unsettled,) = findings(SAMPLES / "w8a16_2.0.0.json", "qairt:2.35/v75")["Q715"].values()
    assert unsettled.severity is Severity.WARNING
    assert "Q715" not in findings(SAMPLES / "w8a16_2.0.0.json", "qairt:2.41/soc52")


def test_2_1_0_is_not_known_to_be_read(tmp_path: Path) -> None:
    document = json.loads((SAMPLES / "w8a16_2.0.0.json").read_bytes())
    file = tmp_path / "encodings.json"
    file.write_text(json.dumps({**document, "version": "2.1.0"}))
    (finding,) = findings(file, "qairt:2.41/soc52")["Q715"].values()
    assert finding.severity is Severity.WARNING
    assert "reads them: unknown" in finding.message


def test_what_is_not_reported_is_not_claimed() -> None:
    assert fact(Subject.READS_BLOCKS, (2, 40)).answer is Answer.UNKNOWN
    assert fact(Subject.READS_BLOCKS, (2, 36)).answer is Answer.NO
    assert fact(Subject.FLOAT_BY_UINT8, (2, 33)).confidence is Confidence.EXTRAPOLATED


@pytest.mark.parametrize(("sdk", "severity"), [("2.42", Severity.ERROR), ("2.45", Severity.WARNING)])
def test_lpbq_on_an_sdk_that_cannot_or_may_not(sdk: str, severity: Severity) -> None:
    if severity is Severity.WARNING:  # no plan can be made from blocks of two, and no finding says why
        with pytest.raises(InputError, match="blocks of 2"):
            findings(SAMPLES / "w4a16_lpbq_1.0.0.json", f"qairt:{sdk}/v75")
        return
    found = findings(SAMPLES / "w4a16_lpbq_1.0.0.json", f"qairt:{sdk}/v75")["Q716"]
    assert set(found) == {"conv.w", "mm.w"}
    assert all("map::at: key not found" in f.message and f.severity is severity for f in found.values())


def test_flags_that_exclude_each_other(tmp_path: Path) -> None:
    file = edited(tmp_path)
    assert "Q719" in findings(file, float_fallback="1", float_bitwidth="16")
    assert "Q723" in findings(file, float_fallback="1", input_list="0")
    assert "Q725" in findings(file, input_list="0")
    assert "Q720" in findings(SAMPLES / "w8a16_1.0.0.json", "qairt:2.37/v75", custom_io="1")
    assert not {"Q719", "Q720", "Q723", "Q725"} & set(findings(file, custom_io="1"))


def test_ignore_encodings_and_quantizer_v2(tmp_path: Path) -> None:
    file = edited(tmp_path)
    assert "Q731" in findings(file, **FALLBACK, ignore_encodings="1")
    assert "Q731" in findings(file, ignore_encodings="1")
    assert "Q731" not in findings(file)
    severities = {"2.31": Severity.ERROR, "2.32": Severity.WARNING, "2.33": Severity.ERROR, "2.36": Severity.WARNING}
    for sdk, severity in severities.items():
        assert findings(file, f"qairt:{sdk}/v75", use_quantize_v2="1")["Q732"]["converter"].severity is severity
    assert "Q732" not in findings(file, "qairt:2.37/v75", use_quantize_v2="1")


@pytest.mark.parametrize("omitted", [(), ("relu_out",)])
def test_ignored_encodings_are_one_error_and_predict_nothing(omitted: tuple[str, ...], tmp_path: Path) -> None:
    """The converter drops the file: no tensor has the precision of an entry, and no entry is judged."""
    found = findings(edited(tmp_path, without=omitted), "qairt:2.41/v75", ignore_encodings="1")
    (finding,) = found["Q731"].values()
    assert finding.severity is Severity.ERROR
    assert "the encodings have no effect" in finding.message
    assert "calibrates activations to 8 bit, weights to 8 and biases to 8" in finding.message
    assert {code for code in found if code.startswith("Q7")} == {"Q721", "Q731"}  # Q721 is about the graph
    unused = findings(edited(tmp_path, floats=("y",)), ignore_encodings="1")
    assert "Q714" not in unused


def test_ignored_encodings_are_not_predicted(tmp_path: Path) -> None:
    target, model = open_target("qairt:2.41/v75", {"ignore_encodings": "1"}), read(MODEL)
    subject = CheckInput(model, target.table, target.facts, raw=model, encodings=read_encodings(edited(tmp_path)))
    conversion = conversion_of(subject)
    assert conversion is not None
    assert not {"uint16", "float16"} & {row.dtype for row in conversion.predicted.values()}
    assert conversion.predicted["rs"].dtype == "uint8"


def test_ignored_encodings_in_other_calls(tmp_path: Path) -> None:
    """Without a quantizer nothing is calibrated; a 2.0.0 file that is dropped selects no Quantizer V2."""
    (finding,) = findings(edited(tmp_path), ignore_encodings="1", input_list="0")["Q731"].values()
    assert "calibrates" not in finding.message
    dropped = findings(SAMPLES / "w8a16_2.0.0.json", "qairt:2.41/v75", ignore_encodings="1")["Q731"]
    assert "calibrates" in dropped["converter"].message
    by_flag = findings(edited(tmp_path), "qairt:2.41/v75", ignore_encodings="1", use_quantize_v2="1")["Q731"]
    assert "calibrates" not in by_flag["converter"].message


def test_the_flag_selects_quantizer_v2_for_an_older_file(tmp_path: Path) -> None:
    file = edited(tmp_path, without=("y",))
    found = findings(file, "qairt:2.41/v75", use_quantize_v2="1")
    assert not {"Q711", "Q732"} & set(found)
    (finding,) = found["Q730"].values()
    assert finding.severity is Severity.WARNING
    assert "become float16 by Quantizer V2" in finding.message
    assert "or 8 bit: not known with --input_list" in finding.message
    assert Confidence.INFERRED in finding.message
    for sdk in ("2.33", "2.36"):  # does not have the option, or is not known to
        assert "y" in findings(file, f"qairt:{sdk}/v75", use_quantize_v2="1")["Q711"]


def test_with_calibration_data_quantizer_v2_may_make_8_bit_of_it() -> None:
    file, doubt = SAMPLES / "w8a16_disabled_y_2.0.0.json", "not known with --input_list"
    (finding,) = findings(file, "qairt:2.41/v75")["Q730"].values()
    assert f", or 8 bit: {doubt}" in finding.message
    (wider,) = findings(file, "qairt:2.41/v75", act_bitwidth="16")["Q730"].values()
    assert f"16 bit: {doubt}" in wider.message
    (without,) = findings(file, "qairt:2.41/v75", **FALLBACK)["Q730"].values()
    assert "not known" not in without.message


def test_a_2_0_0_file_leaves_what_is_omitted_in_float16() -> None:
    """Quantizer V2 has a fallback: nothing is silently quantized to 8 bit."""
    found = findings(SAMPLES / "w8a16_disabled_y_2.0.0.json", "qairt:2.41/v75")
    assert "Q711" not in found
    (finding,) = found["Q730"].values()
    assert finding.severity is Severity.WARNING
    assert "'y'" in finding.message
    assert "become float16 by Quantizer V2, whose summary lists them" in finding.message
    assert "Q711" in findings(SAMPLES / "w8a16_disabled_y_2.0.0.json", "qairt:2.33/v75")  # not known to have it


def test_custom_io_is_reported_for_1_0_0_only() -> None:
    for version, severity in (("1.0.0", Severity.ERROR), ("2.0.0", Severity.WARNING)):
        (finding,) = findings(SAMPLES / f"w8a16_{version}.json", "qairt:2.41/v75", custom_io="1")["Q720"].values()
        assert finding.severity is severity
        assert ("the reports are about 1.0.0" in finding.message) is (version == "2.0.0")


def test_an_absurd_range_is_named_although_another_entry_is_missing(tmp_path: Path) -> None:
    file = edited(tmp_path, without=("relu_out",))
    document = json.loads(file.read_text())
    document["activation_encodings"]["y"][0] |= {"max": 1e34, "min": 0.0, "scale": 1e34 / 65535, "offset": 0}
    file.write_text(json.dumps(document))
    found = findings(file)
    assert "relu_out" in found["Q711"]
    (finding,) = found["Q501"].values()
    assert (str(finding.place), finding.severity) == ("y", Severity.ERROR)
    assert finding.numbers["step"] == pytest.approx(1e34 / 65535)


def test_the_range_of_an_absurd_entry_is_that_of_one_channel() -> None:
    """The largest scale is of the second channel, the first zero point of the first."""
    target, model = open_target("qairt:2.41/v75"), read(MODEL)
    scale, zero_point = np.asarray([1.0, 1e30]), np.asarray([200, 5])
    entry = TensorEncoding("conv.w", 8, granularity=Granularity.AXIS, scale=scale, zero_point=zero_point, axis=0)
    file = Encodings("2.0.0", {"conv.w": entry})
    subject = CheckInput(model, target.table, target.facts, raw=model, encodings=file)
    (finding,) = check(subject, [find_rule("Q501")])
    assert finding.severity is Severity.ERROR
    assert finding.numbers == pytest.approx({"low": -5e30, "high": 250e30, "step": 1e30})


@pytest.mark.parametrize(
    ("scale", "bits", "severity"),
    [(2e5, 8, Severity.WARNING), (2e5, 16, Severity.ERROR), (1e30, 8, Severity.ERROR)],
)
def test_an_absurd_entry_is_a_warning_if_a_wider_one_is_fine_enough(
    scale: float, bits: int, severity: Severity
) -> None:
    target, model = open_target("qairt:2.41/v75"), read(MODEL)
    file = Encodings("2.0.0", {"y": TensorEncoding("y", bits, scale=np.asarray(scale))})
    subject = CheckInput(model, target.table, target.facts, raw=model, encodings=file)
    (finding,) = check(subject, [find_rule("Q501")])
    assert finding.severity is severity
    assert ("quantize 'y' to uint16 over this range" in finding.fix) is (severity is Severity.WARNING)


@pytest.mark.parametrize(
    ("name", "severity"), [("w4a16_bq_1.0.0", Severity.WARNING), ("w4a16_lpbq_1.0.0", Severity.ERROR)]
)
def test_blocks_with_float_scales_are_not_those_of_the_report(name: str, severity: Severity) -> None:
    """No plan can be made from blocks of two, so that the rule is run alone."""
    target, model = open_target("qairt:2.42/v75"), read(MODEL)
    file = read_encodings(SAMPLES / f"{name}.json")
    subject = CheckInput(model, target.table, target.facts, raw=model, encodings=file)
    found = check(subject, [find_rule("Q716")])
    assert {(str(finding.place), finding.severity) for finding in found} == {("conv.w", severity), ("mm.w", severity)}
    assert all(("float scales, about which" in f.message) is (severity is Severity.WARNING) for f in found)


def test_the_exit_code_says_that_an_error_was_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["check", str(MODEL), "--target", "qairt:2.33/v75", "--encodings"]
    for omitted, code in ((("y",), 1), ((), 0)):
        with pytest.raises(SystemExit) as done:
            main([*command, str(edited(tmp_path, without=omitted))])
        assert done.value.code == code
        assert ("will silently become 8 bit" in capsys.readouterr().out) == bool(omitted)


def test_every_question_has_one_answer_for_every_version() -> None:
    assert all(row.source and row.text for row in FACTS)
    for subject, minor in itertools.product(Subject, range(10, 60)):
        assert len([row for row in FACTS if row.subject is subject and row.holds_for((2, minor))]) == 1, subject


def test_explain_shows_every_row_with_source_and_confidence() -> None:
    page = explain(find_rule("Q711"))
    for row in facts_about(Subject.CALIBRATES_OMITTED):
        assert str(row) in page
        assert row.source in str(row)
        assert row.confidence in str(row)
    assert fact(Subject.READS_2_0_0, (2, 35)).answer is Answer.UNKNOWN


def test_tensors_inside_a_layer_norm_of_several_operators_need_no_entry() -> None:
    model = model_from(
        """g (float[2,4] x) => (float[2,4] y)
        <float[4] g = {1,2,3,4}, float[4] b = {0,1,0,1}, float e = {1e-5}, int64[1] axes = {-1}, float two = {2}>
        { mean = ReduceMean<keepdims=1>(x, axes) d = Sub(x, mean) p = Pow(d, two) v = ReduceMean<keepdims=1>(p, axes)
          ve = Add(v, e) s = Sqrt(ve) n = Div(d, s) m = Mul(n, g) l = Add(m, b) y = Sigmoid(l) }"""
    )
    infer_shapes(model)
    predicted = predict(model, {}, ConverterCall(), (2, 33))
    assert {name for name, row in predicted.items() if row.cause is Cause.FUSED} == {
        "mean", "d", "p", "v", "ve", "s", "n", "m",
    }  # fmt: skip
    assert {predicted[name].cause for name in ("x", "l", "y")} == {Cause.CALIBRATED}


def test_without_quantizer_everything_is_float() -> None:
    model = read(MODEL, {})
    entries = read_encodings(SAMPLES / "w8a16_0.6.1.json").entries
    predicted = predict(model, entries, ConverterCall(input_list=False), (2, 33))
    assert {row.dtype for row in predicted.values()} == {"float32"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("qairt:new/v75", "expected an SDK version and a chip"),
        ("qairt:2.33/v70", "qairt:SDK/v70: unknown HTP architecture v70"),
        ("qairt:2.33/sm1", "qairt:SDK/sm1: unknown chip"),
    ],
)
def test_a_malformed_name_is_refused(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        open_target(name)


def test_an_architecture_has_float16_without_an_soc_number() -> None:
    assert "fp16" in open_target("qairt:2.33/v75").table.precisions
    assert "fp16" not in open_target("qnn-htp:v75").table.precisions
    with pytest.raises(InputError, match="target qairt has no option 'speed'"):
        open_target("qairt:2.33/v75", {"speed": "1"})


def test_the_table_in_the_documentation_is_current() -> None:
    document = (Path(__file__).parents[3] / "docs" / "qairt.md").read_text(encoding="utf-8")
    assert fact_table() in document
    assert with_table(document) == document, "run python -m dovetail.targets.qairt.fact_table docs/qairt.md"
    assert with_table("<!-- facts -->\nold\n<!-- end of facts -->").count(FACTS[0].source) >= 1
