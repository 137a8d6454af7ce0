"""``check`` checks the graph that ``fit`` would quantize: without an unsupported tail, with the caller's names."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.checking import check_file
from dovetail.targets import open_target
from tests.rules.cases import write

HEAD = '<ir_version: 10, opset_import: ["": 21]>\n'
# The end of a detector: an operator that HTP does not support, after a layer that it runs.
TAIL = """g (float[1,4,4] x, float[1,1,4] scores) => (int64[n,3] kept)
<float[4,4] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7}>
{ boxes = MatMul(x, w)  kept = NonMaxSuppression(boxes, scores) }"""
ALONE = """g (float[1,4,4] x, float[1,1,4] scores) => (int64[n,3] kept) { kept = NonMaxSuppression(x, scores) }"""


def test_an_operator_in_the_tail_is_not_reported(tmp_path: Path) -> None:
    findings = check_file(write(HEAD + TAIL, tmp_path), open_target("qnn-htp:sm8550"))
    assert findings == ()


def test_an_operator_that_cannot_be_split_off_is_reported(tmp_path: Path) -> None:
    findings = check_file(write(HEAD + ALONE, tmp_path), open_target("qnn-htp:sm8550"))
    assert any("NonMaxSuppression" in f"{finding.place} {finding.message}" for finding in findings)


@pytest.mark.parametrize("target", ["qnn-htp:sm8550", "ort-cpu"])
def test_places_have_the_callers_names_if_passes_replaced_nodes(target: str, tmp_path: Path) -> None:
    body = """g (float[1,4] x) => (float[1,4] y) <float[4] c = {1, -2, 3, 1e34}, float one = {1.0}>
    { [scale] a = Mul(x, one)  [bias] y = Add(a, c) }"""
    findings = check_file(write(HEAD + body, tmp_path), open_target(target))
    assert [finding.code for finding in findings] == ["Q501"]
    assert findings[0].place.tensor == "c"
