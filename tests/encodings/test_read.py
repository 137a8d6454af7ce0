"""Hostile encodings files: one sentence that names the entry."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.encoding import Granularity
from dovetail.encodings.read import parse_encodings, read_encodings
from dovetail.errors import InputError

SAMPLES = Path(__file__).parent / "samples"
FILES = sorted(SAMPLES.glob("*.json"))
ONE = {"name": "t", "dtype": "INT", "bw": 8, "is_sym": False, "enc_type": "PER_TENSOR", "scale": [0.5], "offset": [-3]}
TWO = {"name": "t", "output_dtype": "uint8", "y_scale": 0.5, "y_zero_point": 3}
OLD = {"bitwidth": 8, "dtype": "int", "is_symmetric": "False", "scale": 0.5, "offset": -3, "min": -1.5, "max": 126.0}
LPBQ = {
    "name": "t", "dtype": "INT", "bw": 8, "compressed_bw": 4, "is_sym": True, "enc_type": "LPBQ", "block_size": 2,
    "scale": [0.5, 0.5], "offset": [-128, -128], "per_block_int_scale": [16, 3, 2, 16],
}  # fmt: skip


def file_of(version: str, entry: Any) -> bytes:
    if version.startswith("2"):
        return json.dumps({"version": version, "encodings": [entry]}).encode()
    section = {"t": entry} if version == "0.6.1" else [entry]
    empty: Any = {} if version == "0.6.1" else []
    return json.dumps({"version": version, "activation_encodings": section, "param_encodings": empty}).encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not valid JSON: Expecting value at line 1, column 1"),
        (b'{"version": "1.0.0", "activation_enc', "not valid JSON: Unterminated string"),
        (b"\xff\xfe\x00", "not text in UTF-8"),
        (b"[1]", "it is a list of 1, expected a JSON object"),
        (b"{}", "it has no version; expected one of 0.6.1, 1.0.0, 2.0.0, 2.1.0"),
        (b'{"version": "3.0.0"}', "version '3.0.0' is unknown"),
        (b'{"version": ["1.0.0"]}', "version a list of 1 is unknown"),
        (b'{"version": "1.0.0", "param_encodings": []}', "must have 'activation_encodings', which is missing"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"version": ' + b"1" * 10_000 + b"}", "too many digits"),
        (b'{"version": "2.0.0", "version": "1.0.0"}', "entry 'version': there are two"),
        (b'{"version": "2.0.0", "encodings": {}}', "entry 'encodings': it is a JSON object of 0; expected a list"),
        (b'{"version": "2.0.0", "encodings": [3]}', r"entry 'encodings\[0\]': it is not a JSON object with a name"),
    ],
)
def test_a_file_that_is_no_encodings_file(content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_encodings(content)


@pytest.mark.parametrize(
    ("version", "entry", "message"),
    [
        ("1.0.0", {**ONE, "scale": [float("nan")]}, "scale is nan; every scale must be a finite float32 above 0"),
        ("1.0.0", {**ONE, "scale": [-1.0]}, "scale is -1;"),
        ("1.0.0", {**ONE, "scale": [1e-60]}, "scale is 1e-60;"),
        ("1.0.0", {**ONE, "scale": [1e300]}, "scale is 1e"),
        ("1.0.0", {**ONE, "scale": "0.5"}, "scale is '0.5'; expected a number or a list"),
        ("1.0.0", {**ONE, "scale": [True]}, "scale is True"),
        ("1.0.0", {**ONE, "scale": [0.5, 0.5]}, "PER_TENSOR with 2 scales; expected one"),
        ("1.0.0", {**ONE, "scale": []}, "scale is empty"),
        ("1.0.0", {**ONE, "offset": [3]}, "offset is 3; expected a whole number from -255 to 0"),
        ("1.0.0", {**ONE, "offset": [-1.5]}, "offset is -1.5; expected a whole number"),
        ("1.0.0", {**ONE, "offset": [10**400]}, "offset is 1000"),
        ("1.0.0", {**ONE, "bw": 0}, "bw is 0; expected a whole number from 2 to 32"),
        ("1.0.0", {**ONE, "bw": True}, "bw is True; expected a whole number"),
        ("1.0.0", {**ONE, "dtype": "int"}, "dtype is 'int'; expected one of INT, FLOAT"),
        ("1.0.0", {**ONE, "dtype": "FLOAT"}, "FLOAT with 8 bits, PER_TENSOR; expected 16 or 32 bits"),
        ("1.0.0", {**ONE, "enc_type": "PER_ROW"}, "enc_type is 'PER_ROW'; expected one of PER_TENSOR"),
        ("1.0.0", {**ONE, "is_sym": 1}, "is_sym is 1; expected true or false"),
        ("1.0.0", {**ONE, "enc_type": "PER_CHANNEL", "offset": [0, 0]}, "scale has 1 values and offset has 2"),
        ("1.0.0", {**ONE, "enc_type": "PER_CHANNEL", "scale": [[1.0], [1.0, 2.0]]}, "lists that differ in length"),
        ("1.0.0", {**ONE, "enc_type": "PER_CHANNEL", "scale": [1.0, True]}, "a value that is not a number"),
        ("1.0.0", {**ONE, "enc_type": "PER_CHANNEL", "scale": [1.0, "a"]}, "a value that is not a number"),
        ("1.0.0", {**ONE, "enc_type": "PER_BLOCK"}, "it has no 'block_size'"),
        ("1.0.0", {**LPBQ, "per_block_int_scale": [17, 1, 1, 1]}, "per_block_int_scale is 17; expected .* 1 to 16"),
        ("1.0.0", {**LPBQ, "per_block_int_scale": [0, 1, 1, 1]}, "per_block_int_scale is 0"),
        ("1.0.0", {**LPBQ, "per_block_int_scale": [1, 1, 1]}, "3 integer scales are not a multiple of its 2 scales"),
        ("1.0.0", {**LPBQ, "offset": [-128, 0]}, "LPBQ must be symmetric"),
        ("1.0.0", {**LPBQ, "compressed_bw": 8}, "compressed_bw is 8; expected a whole number from 2 to 7"),
        ("2.0.0", {**TWO, "y_scale": None}, "y_scale is None; expected a number"),
        ("2.0.0", {**TWO, "y_scale": [1.0, 2.0]}, "y_scale has 2 values but there is no axis"),
        ("2.0.0", {**TWO, "y_scale": {"x": [1]}}, "y_scale is a JSON object of 1; expected a number"),
        ("2.0.0", {**TWO, "y_zero_point": 256}, "y_zero_point is 256; expected a whole number from 0 to 255"),
        ("2.0.0", {**TWO, "y_zero_point": 0.5}, "y_zero_point is 0.5"),
        ("2.0.0", {**TWO, "output_dtype": "float8e4m3fn"}, "output_dtype is 'float8e4m3fn'; expected int"),
        ("2.0.0", {**TWO, "output_dtype": 8}, "output_dtype is 8; expected int"),
        ("2.0.0", {**TWO, "y_scale": [[1.0]], "axis": 0}, "y_scale has 2 dimensions"),
        ("2.0.0", {**TWO, "y_scale": [[1.0]], "axis": 2, "block_size": 2}, "axis is 2; expected .* from -2 to 1"),
        ("2.0.0", {**TWO, "y_scale": [1.0], "axis": 0, "block_size": 2}, "scales of blocks have 1 dimensions"),
        ("0.6.1", OLD, "it is a JSON object of 7; expected a list with one element per channel"),
        ("0.6.1", [], "it is a list of 0; expected a list"),
        ("0.6.1", [3], "an element of its list is not a JSON object"),
        ("0.6.1", [{**OLD, "scale": float("inf")}], "scale is inf"),
        ("0.6.1", [OLD, {**OLD, "bitwidth": 4}], "its channels differ in bitwidth"),
        ("0.6.1", [{k: v for k, v in OLD.items() if k != "offset"}], "it has no 'offset'"),
        ("0.6.1", [{**OLD, "scale": [0.5, 0.5]}], "scale or offset is a list"),
        ("0.6.1", [{**OLD, "is_symmetric": "maybe"}], "is_symmetric is 'maybe'"),
    ],
)
def test_a_wrong_entry_is_named(version: str, entry: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"^entry 't': .*{message}") as caught:
        parse_encodings(file_of(version, entry))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("version", ["1.0.0", "2.0.0"])
def test_two_entries_of_one_name(version: str) -> None:
    document = json.loads(file_of(version, TWO if version == "2.0.0" else ONE))
    entries = document["encodings" if version == "2.0.0" else "activation_encodings"]
    entries.append(copy.deepcopy(entries[0]))
    with pytest.raises(InputError, match="entry 't': there are two entries of this name"):
        parse_encodings(json.dumps(document).encode())


def test_two_entries_of_one_name_in_a_json_object() -> None:
    content = b'{"version": "0.6.1", "param_encodings": {"t": [], "t": []}, "activation_encodings": {}}'
    with pytest.raises(InputError, match="entry 't': there are two entries of this name"):
        parse_encodings(content)


def test_a_million_channels_are_read() -> None:
    entry = {**ONE, "enc_type": "PER_CHANNEL", "scale": [0.5] * 1_000_000, "offset": [0] * 1_000_000}
    assert parse_encodings(file_of("1.0.0", entry)).entries["t"].scale.size == 1_000_000


def test_keys_that_are_not_understood_are_listed() -> None:
    read = parse_encodings(file_of("1.0.0", {**ONE, "zero_point_shift": [0.5]}))
    assert read.ignored == ("'zero_point_shift' of entry 't'",)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none.json: cannot be read \(No such file"):
        read_encodings(tmp_path / "none.json")
    with pytest.raises(InputError, match="cannot be read"):
        read_encodings(tmp_path)


def test_a_quantized_scale_of_2_1_0_is_lpbq() -> None:
    scale = {"x": [[3, 5], [11, 9], [7, 16]], "x_scale": [0.001, 0.002, 0.003], "axis": 0}
    entry = {"name": "t", "y_scale": scale, "axis": 1, "block_size": 32, "output_dtype": "int4"}
    read = parse_encodings(file_of("2.1.0", entry)).entries["t"]
    assert (read.granularity, read.axis, read.block_size) == (Granularity.EXPANDED_BLOCK, 1, 32)
    np.testing.assert_array_equal(read.scale, [[0.001], [0.002], [0.003]])
    np.testing.assert_array_equal(read.int_scale, scale["x"])


@pytest.mark.parametrize(
    "change",
    [
        {"input_dtype": "float8e4m3fn"},
        {"x_scale": 0.5},
        {"x_zero_point": 1},
        {"block_size": 2},
        {"axis": 1},
    ],
    ids=str,
)
def test_any_other_quantized_scale_of_2_1_0_is_refused(change: dict[str, Any]) -> None:
    scale = {"x": [[3, 5], [11, 9]], "x_scale": [0.1, 0.2], "axis": 0, **change}
    entry = {"name": "t", "y_scale": scale, "axis": 1, "block_size": 32, "output_dtype": "int4"}
    with pytest.raises(InputError, match="entry 't': its y_scale is itself quantized"):
        parse_encodings(file_of("2.1.0", entry))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(FILES), st.data())
@settings(deadline=None, max_examples=300)
def test_any_value_at_any_place_is_read_or_refused_in_one_sentence(path: Path, data: st.DataObject) -> None:
    document = json.loads(path.read_bytes())
    place: Any = document
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.integers(0, 3)) == 0:
            break
        place = place[key]
    place[key] = data.draw(JSON)
    problem = ""
    try:
        parse_encodings(json.dumps(document).encode())
    except InputError as error:  # anything else fails
        problem = str(error)
    assert "\n" not in problem


@given(st.sampled_from(FILES), st.floats(0, 1))
@settings(deadline=None, max_examples=60)
def test_a_truncated_file_is_refused(path: Path, fraction: float) -> None:
    content = path.read_bytes().rstrip()
    with pytest.raises(InputError, match="not valid JSON"):
        parse_encodings(content[: int(fraction * (len(content) - 1))])
