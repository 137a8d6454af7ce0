"""Samples from every source, one at a time, and one clear sentence for each kind of bad data."""

from __future__ import annotations

import io
import sys
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail.calibrate.data import InputSpec, describe
from dovetail.calibrate.sources import ImageOptions, open_data
from dovetail.errors import InputError
from tests.planning import graph

SPEC = (InputSpec("x", (1, 3), np.dtype(np.float32)),)
ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)


def values(source: object, specs: tuple[InputSpec, ...] = SPEC, **options: object) -> list[np.ndarray]:
    return [sample["x"] for sample in open_data(source, specs, **options).samples()]  # type: ignore[arg-type]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_sample_by_sample(save: object, tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    save(path, x=ROWS)  # type: ignore[operator]
    assert open_data(path, SPEC).count == 4
    np.testing.assert_array_equal(np.concatenate(values(path)), ROWS)
    np.testing.assert_array_equal(np.concatenate(values(path)), ROWS)  # can be read again


def test_npz_with_one_complete_input_per_row(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, x=ROWS[:, None])
    np.testing.assert_array_equal(np.concatenate(values(path)), ROWS)


def test_npz_of_a_model_with_a_batch(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, x=ROWS)
    specs = (InputSpec("x", (2, 3), np.dtype(np.float32)),)
    assert [a.shape for a in values(path, specs)] == [(2, 3), (2, 3)]
    for rows, fix in ((3, "remove 1"), (1, "add 1")):
        np.savez(path, x=ROWS[:rows])
        message = f"the number of rows of 'x', {rows}, is not a multiple of the model's batch size 2: {fix}"
        with pytest.raises(InputError, match=message):
            open_data(path, specs)


def test_npz_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "big.npz"
    specs = (InputSpec("x", (1, 1000), np.dtype(np.float32)),)
    np.savez(path, x=np.zeros((5000, 1000), np.float32))  # 20 MB
    tracemalloc.start()
    assert sum(1 for _ in open_data(path, specs).samples()) == 5000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000


def test_folder_of_npy(tmp_path: Path) -> None:
    for i, row in enumerate(ROWS):
        np.save(tmp_path / f"{i}.npy", row)
    np.testing.assert_array_equal(np.concatenate(values(tmp_path)), ROWS)


def test_folder_of_images(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="needs the package pillow")
    pixels = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    image.fromarray(pixels).save(tmp_path / "a.png")
    specs = (InputSpec("x", (1, 3, 4, 4), np.dtype(np.float32)),)
    options = ImageOptions(size=(4, 4), mean=(0.5, 0.25, 0.0), std=(2.0, 1.0, 1.0))
    (sample,) = values(tmp_path, specs, images=options)
    expected = (pixels.astype(np.float32) / 255 - np.float32([0.5, 0.25, 0])) / np.float32([2, 1, 1])
    np.testing.assert_allclose(sample[0], expected.transpose(2, 0, 1), rtol=1e-6)
    nhwc_specs = (InputSpec("x", (1, 4, 4, 3), np.dtype(np.float32)),)
    (nhwc,) = values(tmp_path, nhwc_specs, images=ImageOptions(layout="nhwc"))
    np.testing.assert_allclose(nhwc[0], pixels / np.float32(255), rtol=1e-6)
    for wrong, message in (
        (ImageOptions(size=(5, 4)), "--size 5,4 differs from the size of 'x', 4,4"),
        (ImageOptions(mean=(1.0, 2.0)), "--mean has 2 values, 'x' has 3 channels"),
        (ImageOptions(layout="nhwc"), "4 channels in layout nhwc"),
    ):
        with pytest.raises(InputError, match=message):
            values(tmp_path, specs, images=wrong)
    (tmp_path / "b.png").write_bytes(b"not an image")
    with pytest.raises(InputError, match=r"b\.png cannot be read as an image"):
        values(tmp_path, specs)


def test_function_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_samples.py").write_text(
        "import numpy as np\ndef rows():\n    for i in range(3):\n        yield {'x': np.full((1, 3), i, np.float32)}\n"
        "def wrong():\n    yield [1]\n"
    )
    monkeypatch.chdir(tmp_path)
    assert [float(a[0, 0]) for a in values("my_samples:rows")] == [0, 1, 2]
    with pytest.raises(InputError, match="yields list, but must yield dicts"):
        values("my_samples:wrong")
    with pytest.raises(InputError, match="has no function 'none'"):
        values("my_samples:none")
    with pytest.raises(InputError, match="cannot import 'no_such_module'"):
        values("no_such_module:rows")
    assert str(tmp_path) not in sys.path


def test_random_noise_is_marked_as_such() -> None:
    data = open_data("random:3", SPEC)
    assert data.random
    first, again = list(data.samples()), list(data.samples())
    assert len(first) == 3
    np.testing.assert_array_equal(first[2]["x"], again[2]["x"])
    assert describe(data, graph("g (float[1,3] x) => (float[1,3] y) { y = Relu(x) }")).data.random
    with pytest.raises(InputError, match="random:many: expected random:N with N samples, for example random:16"):
        open_data("random:many", SPEC)


def test_samples_are_counted_and_hashed_as_they_are_read() -> None:
    model = graph("g (float[1,3] x) => (float[1,3] y) { y = Relu(x) }")
    data, reversed_data = (describe(open_data({"x": rows}, SPEC), model) for rows in (ROWS, ROWS[::-1]))
    for tracked in (data, reversed_data):
        assert sum(1 for _ in tracked.samples()) == 4
    assert data.info().samples == 4
    assert data.info().sha256 != reversed_data.info().sha256
    assert sorted(data.digests) == sorted(reversed_data.digests)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": ROWS}, "array 'y' is not an input of the model; its inputs are x"),
        ({}, "no array for the model input 'x'"),
        ({"x": ROWS[:, :2]}, r"'x' has shape \(4, 2\), the model requires \(1, 3\) per call"),
        ({"x": ROWS.astype(np.int32)}, "'x' is int32, the model requires float32"),
        ({"x": np.where(ROWS == 5, np.nan, ROWS).astype(np.float32)}, "'x' of sample 1 contains NaN"),
        ({"x": np.where(ROWS == 7, np.inf, ROWS).astype(np.float32)}, "'x' of sample 2 contains infinity"),
    ],
)
def test_bad_arrays_are_named(arrays: dict[str, np.ndarray], message: str, tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, **arrays)  # type: ignore[arg-type]
    for source in (path, arrays):
        with pytest.raises(InputError, match=message):
            values(source)


def test_empty_calibration_is_refused() -> None:
    model = graph("g (float[1,3] x) => (float[1,3] y) { y = Relu(x) }")
    with pytest.raises(InputError, match="in-memory arrays: no samples"):
        list(describe(open_data({"x": ROWS[:0]}, SPEC), model).samples())


def test_targets_of_a_metric_may_be_given_with_the_inputs() -> None:
    data = open_data({"x": ROWS, "labels": np.arange(4)}, SPEC, extra=True)
    assert [int(sample["labels"][0]) for sample in data.samples()] == [0, 1, 2, 3]
    with pytest.raises(InputError, match="different numbers of samples: x 4, labels 3"):
        open_data({"x": ROWS, "labels": np.arange(3)}, SPEC, extra=True)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("data.npz", b"nothing", "cannot be read as .npz"),
        ("data.txt", b"nothing", "expected an .npz file, a folder"),
        ("folder/readme.txt", b"nothing", "the folder contains no .npy files and no images"),
        ("folder/a.npy", b"nothing", "not a NumPy array"),
    ],
)
def test_bad_files_are_named(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        values(path.parent if path.parent != tmp_path else path)


def test_missing_file() -> None:
    with pytest.raises(InputError, match=r"cannot be read as \.npz"):
        values("nowhere.npz")


def test_truncated_npz(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, x=ROWS)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InputError, match=r"cannot be read as \.npz"):
        values(path)


def test_truncated_array_in_npz(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.save(buffer, ROWS)
    path = tmp_path / "data.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", buffer.getvalue()[:-4])
    with pytest.raises(InputError, match=r"data\.npz: array 'x' is truncated: it ends before its last sample"):
        values(path)


def test_fortran_order_and_objects_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, x=np.asfortranarray(ROWS))
    with pytest.raises(InputError, match="Fortran order"):
        values(path)
    np.savez(path, x=np.array([["a", {}, 1]] * 4, dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="Python objects"):
        values(path)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_corrupt_npz_is_named_wherever_the_damage_is(save: object, tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    specs = (InputSpec("x", (1, 3000), np.dtype(np.float32)),)
    save(path, x=np.random.default_rng(0).random((4, 3000), np.float32))  # type: ignore[operator]
    content = bytearray(path.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 64] = bytes(64)
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"data\.npz cannot be read as \.npz"):
        values(path, specs)


@pytest.mark.parametrize("text", [":f", ".x:f", "a b:f", "module:"])
def test_an_invalid_function_name_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="expected module:function"):
        values(text)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("user_syntax:f", "cannot import 'user_syntax': SyntaxError"),
        ("user_breaks:f", "cannot import 'user_breaks': ZeroDivisionError: division by zero"),
        ("user_exits:f", "cannot import 'user_exits': SystemExit: 3"),
        ("user_rows:boom", "user_rows:boom: RuntimeError: disk on fire"),
        ("user_rows:late", "user_rows:late: EOFError: no more"),
        ("user_rows:none", "returns NoneType, but must yield dicts"),
        ("user_rows:needs", "user_rows:needs: TypeError: .* missing 1 required positional argument"),
        ("user_rows:nothing", r"'x' of sample 0 has shape \(\)"),
        ("user_rows:ragged", "'x' of sample 0 is not an array"),
        ("user_rows:number", "no array for the model input 'x'; sample 0 has 3, y"),
    ],
)
def test_an_error_in_a_function_names_the_function(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "user_syntax.py").write_text("def f(:\n")
    (tmp_path / "user_breaks.py").write_text("1 / 0\n")
    (tmp_path / "user_exits.py").write_text("import sys\nsys.exit(3)\n")
    (tmp_path / "user_rows.py").write_text(
        "import numpy as np\n"
        "def boom():\n    raise RuntimeError('disk on fire')\n"
        "def late():\n    yield {'x': np.zeros((1, 3), np.float32)}\n    raise EOFError('no more')\n"
        "def none():\n    return None\n"
        "def needs(count):\n    yield {}\n"
        "def nothing():\n    yield {'x': None}\n"
        "def ragged():\n    yield {'x': [[1.0, 2.0], [3.0]]}\n"
        "def number():\n    yield {3: 1, 'y': 2}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "user_rows", raising=False)
    with pytest.raises(InputError, match=message):
        values(name)


def test_scalar_inputs() -> None:
    specs = (*SPEC, InputSpec("s", (), np.dtype(np.float32)))
    samples = list(open_data({"x": ROWS, "s": np.arange(4, dtype=np.float32)}, specs).samples())
    assert [(sample["s"].shape, float(sample["s"])) for sample in samples] == [((), 0), ((), 1), ((), 2), ((), 3)]
    for arrays in ({"x": ROWS[:1], "s": np.float32(2)}, {"x": ROWS, "s": ROWS[:, 0], "label": np.float32(2)}):
        with pytest.raises(InputError, match="is a scalar: samples must be along the first axis"):
            open_data(arrays, specs, extra=True)


def test_every_row_of_a_batch_is_a_sample() -> None:
    batched = graph("g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }")
    specs = (InputSpec("x", (2, 3), np.dtype(np.float32)),)
    batches = describe(open_data({"x": ROWS}, specs), batched)
    assert sum(1 for _ in batches.samples()) == 2
    assert batches.info().samples == 4
    single = describe(open_data({"x": ROWS[::-1]}, SPEC), graph("g (float[1,3] x) => (float[1,3] y) { y = Relu(x) }"))
    list(single.samples())
    assert set(single.digests) == set(batches.digests)


def test_data_of_an_unsupported_type_is_refused_without_being_printed() -> None:
    samples: Any = [{"x": np.zeros((1, 3), np.float32)}] * 100
    with pytest.raises(InputError, match="data cannot be a list: expected arrays by input name") as error:
        open_data(samples, ())
    assert len(str(error.value)) < 200
