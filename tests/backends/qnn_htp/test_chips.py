"""Chips by name, architecture and number, from one table; options by known keys only."""

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
    ("text", "said"),
    [
        ("sm9999", "no such chip"),
        ("v70", "no HTP v70"),
        ("soc90", "say its architecture too, as in soc90/v75"),
        ("soc52/v75", "soc52 is a v73 part"),
        ("soc90/v70", "no HTP v70"),
    ],
)
def test_unknown_chips_are_refused(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        chip_named(text)


def test_what_a_chip_can_do_follows_from_its_architecture() -> None:
    assert not CHIPS["qcs6490"].has_float16
    assert CHIPS["sm8550"].has_float16
    assert not chip_named("v73").has_float16  # the provider wants an SoC number for it
    assert not CHIPS["sm8450"].has_int16_operands
    assert chip_named("v73").has_int16_operands
    assert CHIPS["soc52"].has_estimate
    assert len(open_target("qnn-htp:sm8550").table.ops["MatMul"].signatures) > len(
        open_target("qnn-htp:sm8450").table.ops["MatMul"].signatures
    )


def test_options_reach_the_provider_under_its_own_names() -> None:
    told = provider_options(CHIPS["soc52"], {"vtcm_mb": "8"}, float16=False)
    assert told == {"vtcm_mb": "8", "htp_graph_finalization_optimization_mode": "3", "soc_model": "52"}
    assert provider_options(chip_named("v75"), {}, float16=False)["htp_arch"] == "75"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"vtcm": "8"}, "no option 'vtcm'"),
        ({"vtcm_mb": "lots"}, "must be a whole number from 1"),
        ({"optimization": "9"}, "must be one of 0, 1, 2, 3"),
        ({"dlc": "yes"}, "--option dlc=yes: must be one of 0, 1"),
        ({"time_limit_s": "0"}, "--option time_limit_s=0: must be a number above zero"),
        ({"time_limit_s": "nan"}, "must be a number above zero"),
        ({"memory_limit_mb": "1.5"}, "--option memory_limit_mb=1.5: must be a whole number from 1"),
        ({"device_qairt": "new"}, "--option device_qairt=new: must be a QAIRT version, as in 2.47"),
        ({"vtcm_mb": "9"}, "--option vtcm_mb=9: sm8550 has 8 MB; the compiler would take it without a word"),
    ],
)
def test_typos_are_refused_because_the_provider_ignores_them(options: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        open_target("qnn-htp:sm8550", options)


def test_limits_and_files_are_ours_and_not_told_to_the_provider() -> None:
    given = {"dlc": "1", "device_qairt": "2.47.0", "time_limit_s": "0.5", "memory_limit_mb": "512"}
    asked = read_options(CHIPS["soc52"], given)
    assert (asked.dlc, asked.device_qairt, asked.limits.time_s, asked.limits.memory_bytes) == (
        True,
        (2, 47),
        0.5,
        512 << 20,
    )
    assert asked.provider == read_options(CHIPS["soc52"], {}).provider


@pytest.mark.parametrize(
    ("chip", "said"),
    [
        ("qcs6490", "fp16 is not to be had on qnn-htp:qcs6490: HTP v68 does not compute in float16"),
        ("v68", "HTP v68 does not compute in float16"),
        ("sm7550", "sm7550 computes in integers only"),
        ("v75", "float16 needs an SoC number, and v75 is an architecture: name the chip, as in qnn-htp:sm8650"),
    ],
)
@pytest.mark.parametrize("asked", [{"precision": "fp16"}, {"precision": "w8a8", "keep": ("*=fp16",)}])
def test_float16_where_there_is_none_is_refused_with_the_reason(chip: str, said: str, asked: dict[str, str]) -> None:
    shipped = zoo.load("vit_digits")
    options = FitOptions(f"qnn-htp:{chip}", **asked)  # type: ignore[arg-type]
    assert said in prepare(shipped.model_path, options, calibration=shipped.calib()).refused


def test_the_provider_knows_every_key_that_it_is_told() -> None:
    qnn = pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")
    library = Path(qnn.get_library_path()).read_bytes()
    for key in (*(name for name, _ in PROVIDER_KEYS.values()), "soc_model", "htp_arch", "enable_htp_fp16_precision"):
        assert key.encode() in library, f"{key} would be ignored"


@pytest.mark.parametrize("name", CHIPS)
def test_the_compiler_takes_a_chip_for_what_our_table_says(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")
    chip = CHIPS[name]
    # Float needs float16 on the chip; where there is none, the graph is in integers.
    pair = "q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  a = Relu(d)  r = QuantizeLinear(a, s, z)"
    stored = f"<float s = {{0.1}}, uint8 z = {{128}}> {{ {pair}  y = DequantizeLinear(r, s, z) }}"
    body = "{ [act] y = Gelu(x) }" if chip.has_float16 else stored
    result = compile_text(f"g (float[1,8,16] x) => (float[1,8,16] y) {body}", tmp_path, options(name))
    assert (result.error, result.findings) == ("", ())
    said = {key: int(value) for key, value in re.findall(r"Option: (arch|vtcm_size) = (\d+)", result.log)}
    assert said == {"arch": chip.architecture, "vtcm_size": (chip.vtcm_mb or 0) << 20}
    assert ("Performance Estimates unsupported" not in result.log) == chip.has_estimate
    assert name.startswith("soc") or f"SoC model name is {name.upper()}" in result.log


def test_a_number_of_another_architecture_is_found_out(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")
    result = compile_text(RELU, tmp_path, options("soc90/v73"))  # it is a v75 part
    (finding,) = result.findings
    assert finding.message == "it was compiled for HTP v75, which is what the compiler takes soc 90 for"
    assert (finding.code, finding.place.kind) == ("Q704", PlaceKind.TARGET)
    assert finding.fix == "say qnn-htp:soc90/v75"
