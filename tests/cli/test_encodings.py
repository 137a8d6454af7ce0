"""``dovetail encodings``: conversion to a file or standard output, differences, and what a file says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dovetail.cli.main import main

SAMPLES = Path(__file__).parents[1] / "encodings" / "samples"
MODEL = str(SAMPLES / "tiny.onnx")


def run(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as done:
        main(["encodings", *map(str, arguments)])
    return int(done.value.code or 0)


def test_convert_writes_a_file_and_does_not_replace_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "new.json"
    command = ("convert", SAMPLES / "w8a16_1.0.0.json", "--to", "2.0.0", "--model", MODEL, "-o", output)
    assert run(*command) == 0
    assert json.loads(output.read_bytes())["version"] == "2.0.0"
    before = output.read_bytes()
    assert run(*command) == 2
    assert "exists; add --force to replace it" in capsys.readouterr().err
    assert run(*command, "--force") == 0
    assert output.read_bytes() == before


def test_a_conversion_that_would_lose_something_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, output = SAMPLES / "w8a16_float_mixed_0.6.1.json", tmp_path / "new.json"
    command = ("convert", file, "--to", "2.0.0", "--model", MODEL, "-o", output)
    assert run(*command) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"dovetail: {file}: 2.0.0 cannot carry all of it: float16")
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
    assert run(*command, "--lossy") == 0
    assert capsys.readouterr().err.count("lost: '") == 3


def test_convert_prints_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("convert", SAMPLES / "w8a16_1.0.0.json", "--to", "0.6.1") == 0
    assert json.loads(capsys.readouterr().out) == json.loads((SAMPLES / "w8a16_0.6.1.json").read_bytes())


def test_a_malformed_file_is_one_sentence_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads((SAMPLES / "w8a16_1.0.0.json").read_bytes())
    document["param_encodings"][1]["scale"][3] = float("nan")
    file = tmp_path / "bad.json"
    file.write_text(json.dumps(document))
    assert run("convert", file, "--to", "0.6.1", "-o", tmp_path / "new.json") == 2
    assert capsys.readouterr().err == (
        f"dovetail: {file}: entry 'mm.w': scale is nan; every scale must be a finite float32 above 0\n"
    )
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("name", ["w8a16", "w4a16_bq", "w4a16_lpbq"])
def test_files_of_two_versions_differ_only_in_what_one_does_not_have(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    files = (SAMPLES / f"{name}_1.0.0.json", SAMPLES / f"{name}_2.0.0.json")
    assert run("diff", *files, "--model", MODEL, "--format", "json") == 1
    found = {row["name"]: row["difference"] for row in json.loads(capsys.readouterr().out)}
    assert set(found) == {"conv.b", "mm.b", "rs", "tr"}
    assert all(text.startswith("only in the second file") for text in found.values())


def test_diff_says_what_differs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("diff", SAMPLES / "w8a16_0.6.1.json", SAMPLES / "w8a16_1.0.0.json") == 0
    assert capsys.readouterr().out == "0 differences\n"
    assert run("diff", SAMPLES / "w8a16_float_mixed_1.0.0.json", SAMPLES / "w8a16_0.6.1.json") == 1
    text = capsys.readouterr().out
    assert "relu_out\n    float16 -> uint16 per tensor\n" in text
    assert "add_out\n    scale 0.000298286 -> 0.000298609; zero point 21303 -> 21322\n" in text
    assert run("diff", SAMPLES / "w4a16_bq_1.0.0.json", SAMPLES / "w4a16_bq_2.0.0.json") == 1
    assert "conv.w\n    blocks in different order, which only the model can match" in capsys.readouterr().out


def test_show_fits_80_columns_and_has_a_json_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads((SAMPLES / "w4a16_lpbq_1.0.0.json").read_bytes())
    document["activation_encodings"][0]["name"] = "a/very/long/name" * 10
    file = tmp_path / "long.json"
    file.write_text(json.dumps(document))
    assert run("show", file, "--all") == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert "       2  parameter   int4 LPBQ, blocks of 2" in lines
    assert max(map(len, lines)) <= 80
    assert run("show", file, "--format", "json") == 0
    rows = json.loads(capsys.readouterr().out)["entries"]
    assert next(row for row in rows if row["name"] == "mm.w")["granularity"] == "expanded_block"
