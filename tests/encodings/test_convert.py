"""Conversion of encodings: every sample and generated encodings, through all versions and back."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from dovetail.encoding import Granularity
from dovetail.encodings.convert import WRITABLE, convert
from dovetail.encodings.read import parse_encodings, read_encodings
from dovetail.encodings.records import Encodings, TensorEncoding
from dovetail.encodings.shapes import ModelTensor, read_model_tensors, with_model
from dovetail.errors import InputError
from tests.encodings.generated import encodings

SAMPLES = Path(__file__).parent / "samples"
FILES = sorted(SAMPLES.glob("*.json"))
TENSORS = read_model_tensors(SAMPLES / "tiny.onnx", {})


def sample(name: str) -> Encodings:
    return read_encodings(SAMPLES / f"{name}.json")


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_sample_is_written_as_it_was_read(path: Path) -> None:
    """Written by aimet-onnx 2.42.0: every key and value, also min and max, which are computed."""
    read = read_encodings(path)
    assert read.ignored == ()
    assert json.loads(convert(read, read.version, TENSORS).content) == json.loads(path.read_bytes())


@pytest.mark.parametrize("to", WRITABLE)
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_sample_in_another_version_is_what_aimet_writes_there(path: Path, to: str) -> None:
    read = read_encodings(path)
    written = convert(read, to, TENSORS, lossy=True)
    converted = parse_encodings(written.content)
    reference = SAMPLES / f"{path.stem.replace('_int32bias', '').replace(read.version, to)}.json"
    if reference.exists():
        expected = read_encodings(reference).entries
        # 2.0.0 files also have biases and the outputs of Reshape and Transpose.
        assert {n: e for n, e in converted.entries.items() if n in expected} == {
            n: e for n, e in expected.items() if n in converted.entries
        }
        assert set(read.entries) - set(converted.entries) <= {"relu_out", "y", "mm.w"}
    back = parse_encodings(convert(converted, read.version, TENSORS).content)
    kept = {name: entry for name, entry in read.entries.items() if name in converted.entries}
    assert with_model(back, TENSORS).entries == with_model(Encodings(read.version, kept), TENSORS).entries
    lost = {name for names in written.lost.values() for name in names}
    assert lost == {repr(name) for name in read.entries if name not in converted.entries}


def test_offsets_axes_and_the_order_of_blocks() -> None:
    """The rules of the formats, with the sample's numbers."""
    per_channel = with_model(sample("w8a16_1.0.0"), TENSORS).entries
    assert (per_channel["mm.w"].axis, per_channel["conv.w"].axis) == (1, 0)  # weights are [in, out] and [out, in, 1, 1]
    assert per_channel["mm.w"].signed
    assert int(per_channel["x"].zero_point) == 35715
    assert not per_channel["x"].signed
    flat, nested = (sample(f"w4a16_bq_{version}").entries["mm.w"] for version in ("1.0.0", "2.0.0"))
    assert (flat.scale.shape, nested.scale.shape) == ((12,), (2, 6))
    np.testing.assert_array_equal(flat.scale, nested.scale.T.reshape(-1))  # all blocks of the first output channel
    bias = sample("w8a16_1.0.0_int32bias").entries["conv.b"]
    assert (bias.bits, bias.signed, bias.zero_point.any()) == (32, True, False)


@given(encodings())
@settings(deadline=None, max_examples=60)
def test_generated_encodings_survive_1_0_0_and_2_0_0(case: tuple[Encodings, dict[str, ModelTensor]]) -> None:
    read, tensors = case
    one = with_model(parse_encodings(convert(read, "1.0.0", tensors).content), tensors)
    assert one.entries == read.entries
    floats = {repr(entry.name) for entry in read.entries.values() if entry.is_float}
    two = convert(one, "2.0.0", tensors, lossy=True)
    assert {name for names in two.lost.values() for name in names} == floats
    back = with_model(parse_encodings(two.content), tensors)
    assert back.entries == {n: e for n, e in read.entries.items() if not e.is_float}


@given(encodings(blocks=False, floats=False))
@settings(deadline=None, max_examples=60)
def test_generated_encodings_survive_all_versions_and_the_way_back(
    case: tuple[Encodings, dict[str, ModelTensor]],
) -> None:
    read, tensors = case
    current = read
    for version in ("0.6.1", "1.0.0", "2.0.0", "1.0.0", "0.6.1"):
        current = parse_encodings(convert(current, version, tensors).content)
        assert current.version == version
        assert with_model(current, tensors).entries == read.entries


@given(encodings(blocks=False))
@settings(deadline=None, max_examples=20)
def test_0_6_1_and_1_0_0_need_no_model(case: tuple[Encodings, dict[str, ModelTensor]]) -> None:
    read, tensors = case
    old = parse_encodings(convert(read, "0.6.1", tensors).content)
    one = parse_encodings(convert(old, "1.0.0").content)
    assert parse_encodings(convert(one, "0.6.1").content).entries == old.entries


def test_what_a_version_cannot_carry_is_an_error_with_the_names() -> None:
    with pytest.raises(InputError, match=r"float16 cannot be written in 2.0.0.*'relu_out', 'y', 'mm.w'"):
        convert(sample("w8a16_float_mixed_0.6.1"), "2.0.0", TENSORS)
    with pytest.raises(InputError, match=r"blocks cannot be written in 0.6.1 \('conv.w', 'mm.w'\); add --lossy"):
        convert(sample("w4a16_lpbq_2.0.0"), "0.6.1", TENSORS)


def test_labels_that_a_version_lacks_are_named_and_the_values_are_kept() -> None:
    unsigned = TensorEncoding("t", 8, False, symmetric=True, scale=np.asarray(0.5))
    written = convert(Encodings("1.0.0", {"t": unsigned}), "2.0.0", lossy=True)
    assert "symmetric uint8" in next(iter(written.lost))
    assert parse_encodings(written.content).entries["t"].dtype_text == "uint8"
    shifted = TensorEncoding("t", 8, signed=True, scale=np.asarray(0.5), zero_point=np.asarray(5))
    with pytest.raises(InputError, match="int8 with a zero point other than 0"):
        convert(Encodings("2.0.0", {"t": shifted}), "1.0.0", {"t": ModelTensor(False)})
    lossy = convert(Encodings("2.0.0", {"t": shifted}), "1.0.0", {"t": ModelTensor(False)}, lossy=True)
    entry = parse_encodings(lossy.content).entries["t"]
    assert (entry.dtype_text, int(entry.zero_point)) == ("uint8", 133)


def test_an_axis_that_a_version_cannot_say_is_refused() -> None:
    entry = TensorEncoding(
        "w", 8, granularity=Granularity.AXIS, signed=True, symmetric=True, scale=np.ones(8), axis=1,
        zero_point=np.zeros(8, int),
    )  # fmt: skip
    tensors = {"w": ModelTensor(True, (6, 8), 0, 1)}
    with pytest.raises(InputError, match=r"its axis 1 is not the one that 1.0.0 implies"):
        convert(Encodings("2.0.0", {"w": entry}), "1.0.0", tensors)


def test_without_a_model_what_only_it_knows_is_asked_for() -> None:
    with pytest.raises(
        InputError, match=r"does not have the axis or the block layout of 2 entries .*'conv.w'.*--model"
    ):
        convert(sample("w8a16_1.0.0"), "2.0.0")
    with pytest.raises(InputError, match=r"difference between parameters and activations.*--model"):
        convert(sample("w8a16_2.0.0"), "1.0.0")


def test_a_tensor_that_the_model_does_not_have_is_named() -> None:
    tensors = {name: tensor for name, tensor in TENSORS.items() if name not in ("x", "mm.w")}
    with pytest.raises(InputError, match=r"the model has no such tensor \('mm.w', 'x'\)"):
        convert(sample("w8a16_2.0.0"), "1.0.0", tensors)


def test_scales_that_do_not_fit_the_model_are_named() -> None:
    with pytest.raises(InputError, match=r"entry 'mm.w': it has 6 scales on axis 1, but the tensor has shape \[4, 5\]"):
        convert(sample("w8a16_1.0.0"), "2.0.0", {**TENSORS, "mm.w": ModelTensor(True, (4, 5), 1, 0)})
    with pytest.raises(InputError, match=r"entry 'mm.w': it has 12 blocks; 6 output channels of 8 inputs"):
        convert(sample("w4a16_bq_1.0.0"), "2.0.0", {**TENSORS, "mm.w": ModelTensor(True, (8, 6), 1, 0)})
    with pytest.raises(InputError, match=r"entry 'mm.w': blocks of 2 do not divide"):
        convert(sample("w4a16_bq_1.0.0"), "2.0.0", {**TENSORS, "mm.w": ModelTensor(True, (3, 6), 1, 0)})


def test_the_same_encodings_are_the_same_bytes() -> None:
    contents = {convert(sample("w4a16_lpbq_1.0.0"), "2.0.0", TENSORS).content for _ in range(3)}
    assert len(contents) == 1
