from __future__ import annotations

from dovetail.targets import FAMILIES
from tests.cli.conftest import Run


def test_what_can_be_named_is_listed(run: Run) -> None:
    code, out, err = run("targets")
    assert (code, err) == (0, "")
    words = " ".join(out.split())
    assert all(f" {family} " in words for family in FAMILIES)
    assert "qnn-htp: may be followed by :sm8450, :sm8550," in words
    assert "qnn-htp: --option takes vtcm_mb, optimization," in words
    assert "tensorrt: may be followed by :sm75," in words
