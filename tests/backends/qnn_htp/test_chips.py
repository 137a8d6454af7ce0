"""Chips by name, architecture and number, from one table; options by known keys only."""

from __future__ import annotations

import pytest

from dovetail.errors import InputError
from dovetail.targets import open_target
from dovetail.targets.qnn_htp.chips import CHIPS, chip_named
from dovetail.targets.qnn_htp.options import provider_options


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
    assert len(open_target("qnn-htp:sm8550").ops["MatMul"].signatures) > len(
        open_target("qnn-htp:sm8450").ops["MatMul"].signatures
    )


def test_options_reach_the_provider_under_its_own_names() -> None:
    told = provider_options(CHIPS["soc52"], {"vtcm_mb": "8"}, float16=False)
    assert told == {"vtcm_mb": "8", "htp_graph_finalization_optimization_mode": "3", "soc_model": "52"}
    assert provider_options(chip_named("v75"), {}, float16=False)["htp_arch"] == "75"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"vtcm": "8"}, "no option 'vtcm'"),
        ({"vtcm_mb": "lots"}, "must be a whole number above zero"),
        ({"optimization": "9"}, "must be one of 0, 1, 2, 3"),
    ],
)
def test_typos_are_refused_because_the_provider_ignores_them(options: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        open_target("qnn-htp:sm8550", options)
