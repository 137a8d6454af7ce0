"""Which differences ``python -m bench.identity`` reports, and which it ignores."""

from __future__ import annotations

import json
import re
from pathlib import Path

import onnx
import pytest

from bench import identity, identity_cases

ROW = "vit_digits|ort-cpu|w8a8"


def test_a_recording_equals_itself_and_a_change_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "before.jsonl"
    assert identity.main(["record", str(file), "--only", ROW]) == 0
    row = identity.read_rows(file)[ROW]
    assert sorted(row["files"]) == ["model.onnx", "optimized.onnx"]
    assert set(row["verdicts"].values()) == {"pass"}
    assert identity.main(["compare", str(file), "--only", ROW, "--quick"]) == 0
    assert capsys.readouterr().out.endswith("1 rows equal, 0 differ\n")
    file.write_text(json.dumps({**row, "files": {**row["files"], "model.onnx": "another"}}) + "\n")
    assert identity.main(["compare", str(file), "--only", ROW, "--quick"]) == 1
    assert capsys.readouterr().out.endswith(f"{ROW}: model.onnx\n0 rows equal, 1 differ\n")


def test_a_row_differs_by_files_plan_verdicts_and_refusal() -> None:
    row = {"row": "r", "input": "i", "files": {"model.onnx": "a"}, "plan": "p", "verdicts": {"numerics": "pass"}}
    assert identity.differences(row, row) == []
    assert identity.differences(row, {**row, "files": {"model.onnx": "a", "model.pte": "b"}}) == ["model.pte"]
    assert identity.differences(row, {**row, "verdicts": {"numerics": "fail"}}) == ["numerics pass -> fail"]
    assert identity.differences(row, {**row, "verdicts": {}}, emitted_only=True) == []
    refused = {"row": "r", "input": "i", "refused": "no"}
    assert identity.differences(row, refused) == ["refused", "plan", "model.onnx", "numerics pass -> None"]


def test_a_plan_hash_covers_storage_and_ignores_reasons_and_order() -> None:
    row = dict.fromkeys(("tensor", "edge", "dtype", "scale", "zero_point", "axis", "granularity", "block_size"))
    tensor, edge = {**row, "tensor": "x", "scale": 1}, {**row, "tensor": "x", "edge": "MatMul:0:1", "scale": [0.5]}
    same = [{**edge, "reason": "r"}, {**tensor, "scale": 1.0}]
    assert identity.plan_hash([tensor, edge]) == identity.plan_hash(same)
    assert identity.plan_hash([tensor, edge]) != identity.plan_hash([tensor, {**edge, "edge": "MatMul:0:2"}])


@pytest.mark.parametrize("suffix", [b"\1\2\3\4", b"\0\0\0\1"])
def test_the_model_path_in_a_context_binary_is_ignored(suffix: bytes) -> None:
    def content(path_hash: int) -> bytes:
        name = b"PICKLE/256/QNNExecutionProvider_QNNExecutionProvider_%d_1_0" % path_hash
        return b"head" + len(name).to_bytes(4, "little") + name.ljust(80, b"\0") + suffix

    contents = [content(path_hash) for path_hash in (10**18, 2 * 10**18, 10**19)]
    assert len({identity.without_partition_names(binary) for binary in contents}) == 1
    unchanged = identity.without_partition_names(contents[0])
    assert len(unchanged) == len(contents[0])
    for section in (b"head", suffix):
        changed = contents[0].replace(section, b"else")
        assert identity.without_partition_names(changed) != unchanged


def test_row_names_are_unique_and_cover_every_target() -> None:
    names = [case.row for case in identity_cases.cases()]
    assert len(names) == len(set(names))
    for target in identity_cases.TARGETS:
        assert [name for name in names if re.search(rf"\|{target}\|", name)]


def test_the_names_of_reorder_nodes_are_ignored(tmp_path: Path) -> None:
    def hashed(name: str, source: str) -> str:
        node = onnx.helper.make_node("ReorderOutput", [source], ["y"], name=name, domain="com.microsoft.nchwc")
        path = tmp_path / "optimized.onnx"
        onnx.save(onnx.helper.make_model(onnx.helper.make_graph([node], "g", [], [])), path)
        return identity._hash(path)[1]

    assert hashed("ReorderOutput_token_37", "x") == hashed("ReorderOutput_token_38", "x")
    assert hashed("ReorderOutput_token_37", "x") != hashed("ReorderOutput_token_37", "z")
