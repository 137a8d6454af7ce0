"""Chips by name, architecture and SoC number; options and their errors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dovetail import zoo
from dovetail.config import FitOptions
from dovetail.errors import InputError
from dovetail.finding import PlaceKind
from dovetail.job import prepare
from dovetail.targets import open_target
from dovetail.targets.htp.chips import CHIPS, chip_named
from dovetail.targets.qnn_htp.options import PROVIDER_KEYS, provider_options, read_options
from tests.backends.qnn_htp.real_compiler import RELU, compile_text, options


@pytest.mark.parametrize(
    ("text", "architecture", "soc"),
    [("sm8550", 73, 43), ("SM8550", 73, 43), ("", 73, 43), ("v75", 75, None), ("soc52", 73, 52), ("soc90/v75", 75, 90)],
)
def test_names(text: str, architecture: int, soc: int | None) -> None:
    chip = chip_named(text)
    assert (chip.architecture, chip.soc) == (architecture, soc)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sm9999", "unknown chip; expected one of sm8450, "),
        ("v70", "unknown HTP architecture v70; expected one of v68, v69, "),
        ("soc90", "this SoC number is not listed; add its architecture, as in soc90/v75"),
        ("soc52/v75", "soc52 has the architecture v73"),
        ("soc90/v70", "unknown HTP architecture v70"),
    ],
)
def test_unknown_chips_are_errors(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        chip_named(text)


def test_features_of_a_chip_follow_from_its_architecture() -> None:
    assert not CHIPS["qcs6490"].has_float16
    assert CHIPS["sm8550"].has_float16
    assert not chip_named("v73").has_float16  # the provider requires an SoC number for it
    assert not CHIPS["sm8450"].has_int16_operands
    assert chip_named("v73").has_int16_operands
    assert CHIPS["soc52"].has_estimate
    assert len(open_target("qnn-htp:sm8550").table.ops["MatMul"].signatures) > len(
        open_target("qnn-htp:sm8450").table.ops["MatMul"].signatures
    )


def test_options_reach_the_provider_under_its_own_names() -> None:
    provider = provider_options(CHIPS["soc52"], {"vtcm_mb": "8"}, float16=False)
    assert provider == {"vtcm_mb": "8", "htp_graph_finalization_optimization_mode": "3", "soc_model": "52"}
    assert provider_options(chip_named("v75"), {}, float16=False)["htp_arch"] == "75"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vtcm": "8"}, "no option 'vtcm'; expected one of vtcm_mb, optimization, dlc, "),
        ({"vtcm_mb": "lots"}, "expected a whole number from 1"),
        ({"optimization": "9"}, "expected one of 0, 1, 2, 3"),
        ({"dlc": "yes"}, "--option dlc=yes: expected one of 0, 1"),
        ({"time_limit_s": "0"}, "--option time_limit_s=0: expected a number above zero"),
        ({"time_limit_s": "nan"}, "expected a number above zero"),
        ({"memory_limit_mb": "1.5"}, "--option memory_limit_mb=1.5: expected a whole number from 1"),
        ({"device_qairt": "new"}, "--option device_qairt=new: expected a QAIRT version, as in 2.47"),
        (
            {"vtcm_mb": "9"},
            "--option vtcm_mb=9: sm8550 has 8 MB; use at most that, the compiler silently accepts more",
        ),
    ],
)
def test_invalid_options_are_errors_because_the_provider_ignores_them(options: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        open_target("qnn-htp:sm8550", options)


def test_limits_and_files_are_not_passed_to_the_provider() -> None:
    option = {"dlc": "1", "device_qairt": "2.47.0", "time_limit_s": "0.5", "memory_limit_mb": "512"}
    parsed = read_options(CHIPS["soc52"], option)
    assert (parsed.dlc, parsed.device_qairt, parsed.limits.time_s, parsed.limits.memory_bytes) == (
        True,
        (2, 47),
        0.5,
        512 << 20,
    )
    assert parsed.provider == read_options(CHIPS["soc52"], {}).provider


@pytest.mark.parametrize(
    ("chip", "said"),
    [
        ("qcs6490", "fp16 is not available on qnn-htp:qcs6490: HTP v68 does not compute in float16"),
        ("v68", "HTP v68 does not compute in float16"),
        ("sm7550", "sm7550 computes in integers only"),
        ("v75", "float16 requires an SoC number, and v75 is only an architecture: name the chip, as in qnn-htp:sm8650"),
    ],
)
@pytest.mark.parametrize("asked", [{"precision": "fp16"}, {"precision": "w8a8", "keep": ("*=fp16",)}])
def test_float16_where_there_is_none_is_refused_with_the_reason(chip: str, said: str, asked: dict[str, str]) -> None:
    shipped = zoo.load("vit_digits")
    options = FitOptions(f"qnn-htp:{chip}", **asked)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=said):
        prepare(shipped.model_path, options, calibration=None)  # before the calibration data is looked at


def test_the_provider_knows_every_key_that_is_passed_to_it() -> None:
    qnn = pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")
    library = Path(qnn.get_library_path()).read_bytes()
    for key in (*(name for name, _ in PROVIDER_KEYS.values()), "soc_model", "htp_arch", "enable_htp_fp16_precision"):
        assert key.encode() in library, f"{key} would be ignored"


@pytest.mark.parametrize("name", CHIPS)
def test_the_compiler_agrees_with_the_table_of_chips(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")
    chip = CHIPS[name]
    # A float graph requires float16; without it, the graph is quantized.
    nodes = "q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  a = Relu(d)  r = QuantizeLinear(a, s, z)"
    quantized = f"<float s = {{0.1}}, uint8 z = {{128}}> {{ {nodes}  y = DequantizeLinear(r, s, z) }}"
    body = "{ [act] y = Gelu(x) }" if chip.has_float16 else quantized
    result = compile_text(f"g (float[1,8,16] x) => (float[1,8,16] y) {body}", tmp_path, options(name))
    assert (result.error, result.findings) == ("", ())
    logged = {key: int(value) for key, value in re.findall(r"Option: (arch|vtcm_size) = (\d+)", result.log)}
    assert logged == {"arch": chip.architecture, "vtcm_size": (chip.vtcm_mb or 0) << 20}
    assert ("Performance Estimates unsupported" not in result.log) == chip.has_estimate
    assert name.startswith("soc") or f"SoC model name is {name.upper()}" in result.log


def test_an_soc_number_of_a_different_architecture_is_reported(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")
    result = compile_text(RELU, tmp_path, options("soc90/v73"))  # soc 90 is v75
    (finding,) = result.findings
    assert finding.message == "the compiler compiled for HTP v75, the architecture to which it maps soc 90"
    assert (finding.code, finding.place.kind) == ("Q704", PlaceKind.TARGET)
    assert finding.fix == "use the target qnn-htp:soc90/v75"
