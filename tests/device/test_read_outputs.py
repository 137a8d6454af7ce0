"""Outputs of a device are read in every supported layout; missing or wrong files are refused by name."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dovetail.backend import DeviceTensor, Sample
from dovetail.device.manifest import Manifest
from dovetail.device.read_outputs import find_outputs, read_outputs
from dovetail.errors import InputError
from dovetail.stats import DataInfo

SCORES = DeviceTensor("head/scores", "head_scores", (1, 3), "float32")
BYTES = DeviceTensor("mask", "mask", (2, 2), "uint8", 0.5, 128)
INDEX = DeviceTensor("index", "index", (1, 3), "int64")
SAMPLES = 2


def manifest(*outputs: DeviceTensor) -> Manifest:
    info = DataInfo("arrays", SAMPLES, "", False)
    return Manifest("toy", "w8a8", "", "m.onnx", {}, SAMPLES, info, (), outputs, {}, None, {})


def values(tensor: DeviceTensor, number: int) -> np.ndarray:
    random = np.random.default_rng(number)
    return random.integers(0, 255, tensor.shape).astype(tensor.dtype)


def read(folder: Path, *outputs: DeviceTensor) -> list[Sample]:
    expected = manifest(*(outputs or (SCORES,)))
    return list(read_outputs(find_outputs(folder, expected), expected))


def npy(folder: Path, tensor: DeviceTensor, number: int) -> None:
    (folder / f"{number:03d}").mkdir(parents=True, exist_ok=True)
    np.save(folder / f"{number:03d}/{tensor.file}.npy", values(tensor, number))


def npz(folder: Path, tensor: DeviceTensor, number: int) -> None:
    np.savez(folder / f"{number:03d}.npz", **{tensor.name: values(tensor, number)})


def inner_npz(folder: Path, tensor: DeviceTensor, number: int) -> None:
    (folder / str(number)).mkdir()
    np.savez(folder / f"{number}/outputs.npz", **{tensor.file: values(tensor, number)})


def raw(folder: Path, tensor: DeviceTensor, number: int) -> None:
    (folder / f"{number:03d}").mkdir()
    content = values(tensor, number).astype(np.dtype(tensor.dtype).newbyteorder("<")).tobytes()
    (folder / f"{number:03d}/{tensor.file}.raw").write_bytes(content)


def net_run(folder: Path, tensor: DeviceTensor, number: int) -> None:
    (folder / f"Result_{number}").mkdir()
    (folder / f"Result_{number}/{tensor.file}.raw").write_bytes(values(tensor, number).tobytes())


def net_run_native(folder: Path, tensor: DeviceTensor, number: int) -> None:
    (folder / f"Result_{number}").mkdir()
    (folder / f"Result_{number}/{tensor.file}_native.raw").write_bytes(values(tensor, number).tobytes())


@pytest.mark.parametrize("tensor", [SCORES, BYTES, INDEX], ids=lambda t: t.dtype)
@pytest.mark.parametrize("write", [npy, npz, inner_npz, raw, net_run, net_run_native], ids=lambda f: f.__name__)
def test_every_layout(write: Callable[[Path, DeviceTensor, int], None], tensor: DeviceTensor, tmp_path: Path) -> None:
    for number in range(SAMPLES):
        write(tmp_path, tensor, number)
    (tmp_path / "run.log").write_text("output of the tool")
    (tmp_path / "profile").mkdir()
    for number, sample in enumerate(read(tmp_path, tensor)):
        expected = values(tensor, number)
        if tensor is BYTES:
            expected = (expected.astype(np.float32) - 128) * np.float32(0.5)
        np.testing.assert_array_equal(sample[tensor.name], expected)
        assert sample[tensor.name].dtype == expected.dtype


def test_quantized_outputs_that_a_tool_has_written_as_float32(tmp_path: Path) -> None:
    dequantized = np.array([[0.5, -1.0], [2.0, 3.5]], np.float32)
    for number in range(SAMPLES):
        (tmp_path / f"Result_{number}").mkdir()
        (tmp_path / f"Result_{number}/mask.raw").write_bytes(dequantized.tobytes())
    for sample in read(tmp_path, BYTES):
        np.testing.assert_array_equal(sample["mask"], dequantized)


def missing_sample(folder: Path) -> None:
    (folder / "001/head_scores.npy").unlink()
    (folder / "001").rmdir()


def missing_output(folder: Path) -> None:
    (folder / "001/head_scores.npy").unlink()


def one_too_many(folder: Path) -> None:
    npy(folder, SCORES, 7)


def twice(folder: Path) -> None:
    net_run(folder, SCORES, 1)


def two_files(folder: Path) -> None:
    (folder / "001/head_scores.raw").write_bytes(bytes(12))


def unknown(folder: Path) -> None:
    np.save(folder / "000/boxes.npy", np.zeros(3))


def unknown_in_npz(folder: Path) -> None:
    np.savez(folder / "000/more.npz", boxes=np.zeros(3))


def wrong_shape(folder: Path) -> None:
    np.save(folder / "001/head_scores.npy", np.zeros((3, 1), np.float32))


def wrong_type(folder: Path) -> None:
    np.save(folder / "001/head_scores.npy", np.zeros((1, 3), np.int32))


def wrong_size(folder: Path) -> None:
    (folder / "001/head_scores.npy").unlink()
    (folder / "001/head_scores.raw").write_bytes(bytes(11))


def truncated(folder: Path) -> None:
    path = folder / "001/head_scores.npy"
    path.write_bytes(path.read_bytes()[:-4])


def empty_file(folder: Path) -> None:
    (folder / "001/head_scores.npy").write_bytes(b"")


def pickled(folder: Path) -> None:
    np.save(folder / "001/head_scores.npy", np.array([{}], object), allow_pickle=True)


def no_npz(folder: Path) -> None:
    missing_sample(folder)
    (folder / "001.npz").write_bytes(b"PK nothing")


def nothing(folder: Path) -> None:
    for sample in list(folder.iterdir()):
        shutil.rmtree(sample)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (missing_sample, " has no sample 1; the device folder has 2 samples"),
        (missing_output, "001 has no output 'head/scores'"),
        (one_too_many, "007 is sample 7, but the device folder has only 2 samples"),
        (twice, "has sample 1 twice, as 001 and as Result_1; remove one"),
        (two_files, "head_scores.raw has the output 'head/scores', which is also in head_scores.npy"),
        (unknown, "boxes.npy has the output 'boxes', which the model does not have; expected one of head/scores"),
        (unknown_in_npz, "more.npz has the output 'boxes', which the model does not have"),
        (wrong_shape, "is float32 [3, 1]; output 'head/scores' is float32 [1, 3]"),
        (wrong_type, "is int32 [1, 3]; output 'head/scores' is float32 [1, 3]"),
        (wrong_size, "has 11 bytes; output 'head/scores' is float32 [1, 3], which requires 12"),
        (truncated, "head_scores.npy is not an array"),
        (empty_file, "head_scores.npy is not an array"),
        (pickled, "head_scores.npy is not an array"),
        (no_npz, "001.npz is not an .npz file"),
        (nothing, "contains no outputs of a device; expected files such as 000/NAME.npy"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_missing_and_wrong_files_are_named(spoil: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    for number in range(SAMPLES):
        npy(tmp_path, SCORES, number)
    assert len(read(tmp_path)) == SAMPLES
    spoil(tmp_path)
    with pytest.raises(InputError) as error:
        read(tmp_path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"the folder with the device outputs, .*nowhere, cannot be read \(No such file"
    ):
        read(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"the folder with the device outputs, .*file, cannot be read"):
        read(tmp_path / "file")
