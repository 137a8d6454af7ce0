"""The HTP op table and rules also work for a second target that compiles for the same hardware with another tool."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from dovetail import rule_docs as docs
from dovetail.catalog import rules_for
from dovetail.checking import check_file
from dovetail.target import Rewrites, Target
from dovetail.targets.htp.chips import Chip, chip_named
from dovetail.targets.htp.rewrites import REWRITES
from dovetail.targets.htp.rules import RULES
from dovetail.targets.htp.table import htp_table
from tests.rules.cases import codes_in, head_of, write
from tests.toy_target import TOY


@dataclass(frozen=True)
class SecondFacts:
    """The facts of the second target: the chip and an SDK version."""

    chip: Chip
    sdk: str


def second_target(chip: str) -> Target:
    """A target with a different name, with the backend of the toy target."""
    facts = SecondFacts(chip_named(chip), "2.33")
    return Target("other-sdk:1", facts, htp_table("other-sdk:1", facts.chip), TOY.backend, Rewrites(REWRITES), RULES)


CASES = [
    pytest.param(rule.code, text, id=name)
    for rule in RULES
    if rule.check is not None
    for name, text in docs.case_texts(rule.code, "bad").items()
]


@pytest.mark.parametrize(("code", "text"), CASES)
def test_every_rule_fires_on_a_target_with_another_name(code: str, text: str, tmp_path: Path) -> None:
    _, _, chip = head_of(text)["target"].partition(":")
    assert code in codes_in(check_file(write(text, tmp_path), second_target(chip)))


def test_no_rule_is_left_out() -> None:
    assert {param.values[0] for param in CASES} == {rule.code for rule in RULES if rule.check is not None}
    assert all(rule in rules_for(second_target("sm8550")) for rule in RULES)
