"""Sources of samples: an ``.npz``, a folder of ``.npy`` files or images, a Python function, arrays, or random noise."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from dovetail.backend import Sample
from dovetail.calibrate.data import Data, InputSpec, check_sample
from dovetail.calibrate.user_code import items_of, load_function
from dovetail.encoding import Array
from dovetail.errors import InputError
from dovetail.whole_number import whole_number

RANDOM_SAMPLES = 8
# What reading a corrupt archive raises; RuntimeError if it is encrypted or its compression is not supported.
_ARCHIVE_ERRORS = (OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
_IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff")


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """How an image becomes an input: resized, scaled to 0..1, then (x - mean) / std, in a layout."""

    size: tuple[int, int] | None = None
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    layout: str = "nchw"


DataLike = str | Path | Mapping[str, Array] | Callable[[], Iterable[Mapping[str, Array]]] | Data


def open_data(
    source: DataLike, specs: tuple[InputSpec, ...], *, images: ImageOptions | None = None, extra: bool = False
) -> Data:
    """Return the samples of a source; ``extra``: arrays that are not model inputs (labels for a metric) are allowed."""
    if isinstance(source, Data):
        return source
    if isinstance(source, Mapping):
        return _from_arrays(source, specs, extra)
    if callable(source):
        return _from_function(source, getattr(source, "__qualname__", "function"), specs)
    if not isinstance(source, str | Path):
        expected = "arrays by input name, a function that yields samples, or a path"
        raise InputError(f"calibration or evaluation data cannot be a {type(source).__name__}: expected {expected}")
    text = str(source)
    if is_random(text):
        return _random(text, specs)
    path = Path(text)
    if path.suffix == ".npz":
        return _from_npz(path, specs, extra)
    if path.is_dir():
        return _from_folder(path, specs, images)
    if ":" in text and not path.exists():
        return _from_function(load_function(text), text, specs)
    raise InputError(f"{text}: expected an .npz file, a folder of .npy files or images, module:function, or random")


def is_random(text: str) -> bool:
    """Whether the source is random noise: ``random`` or ``random:16``."""
    return text.partition(":")[0] == "random"


def _from_arrays(arrays: Mapping[str, Array], specs: tuple[InputSpec, ...], extra: bool) -> Data:
    members = {name: (np.asarray(a).shape, np.asarray(a).dtype) for name, a in arrays.items()}
    calls = _Calls("in-memory arrays", members, specs, extra)

    def samples() -> Iterator[Sample]:
        for number in range(calls.count):
            yield calls.checked({name: np.asarray(a)[calls.rows(name, number)] for name, a in arrays.items()}, number)

    return Data("in-memory arrays", samples, calls.count)


def _from_npz(path: Path, specs: tuple[InputSpec, ...], extra: bool) -> Data:
    """Read an ``.npz`` sample by sample: ``np.load`` would hold whole arrays in memory."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {}
            for entry in archive.namelist():
                with archive.open(entry) as stream:
                    shape, dtype = _npy_header(stream, f"{path.name}:{entry}")
                members[entry.removesuffix(".npy")] = (shape, dtype)
    except _ARCHIVE_ERRORS as error:
        raise InputError(f"{path} cannot be read as .npz ({error})") from error
    calls = _Calls(path.name, members, specs, extra)

    def samples() -> Iterator[Sample]:
        try:
            with zipfile.ZipFile(path) as archive:
                streams = {name: archive.open(f"{name}.npy") for name in members}
                for name, stream in streams.items():
                    _npy_header(stream, name)
                for number in range(calls.count):
                    rows = {
                        name: _read_rows(stream, f"{path.name}: array {name!r}", *members[name], calls.per_call(name))
                        for name, stream in streams.items()
                    }
                    yield calls.checked(rows, number)
        except _ARCHIVE_ERRORS as error:
            raise InputError(f"{path} cannot be read as .npz ({error})") from error

    return Data(path.name, samples, calls.count)


@dataclass(frozen=True, slots=True)
class _Calls:
    """How arrays with samples along their first axis are divided into model calls.

    An array of the input's rank is divided into batches of the model's batch size; an array of one rank more contains
    one complete input per row.
    """

    source: str
    members: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
    specs: tuple[InputSpec, ...]
    extra: bool

    def __post_init__(self) -> None:
        input_names = {spec.name for spec in self.specs}
        unknown = sorted(set(self.members) - input_names)
        if unknown and not self.extra:
            inputs = ", ".join(sorted(input_names))
            raise InputError(
                f"{self.source}: array {unknown[0]!r} is not an input of the model; its inputs are {inputs}"
            )
        for name, (shape, _) in self.members.items():
            if not shape:
                raise InputError(f"{self.source}: {name!r} is a scalar: samples must be along the first axis")
        for spec in self.specs:
            if spec.name not in self.members:
                raise InputError(f"{self.source}: no array for the model input {spec.name!r}")
            shape = self.members[spec.name][0]
            rank = len(spec.shape)
            if len(shape) not in (rank, rank + 1) or shape[len(shape) - rank + 1 :] != spec.shape[1:]:
                raise InputError(
                    f"{self.source}: {spec.name!r} has shape {shape}, the model requires {spec.shape} per call"
                )
        counts = {name: shape[0] // self.per_call(name) for name, (shape, _) in self.members.items()}
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{name} {count}" for name, count in counts.items())
            raise InputError(f"{self.source}: the arrays have different numbers of samples: {listed}")

    @property
    def batch(self) -> int:
        """The number of rows per call: the model's batch size, if an array has the input's own rank."""
        sizes = {s.shape[0] for s in self.specs if s.shape and len(self.members[s.name][0]) == len(s.shape)}
        return max(sizes, default=1)

    def per_call(self, name: str) -> int:
        spec = next((s for s in self.specs if s.name == name), None)
        if spec is not None and len(self.members[name][0]) == len(spec.shape) + 1:
            return 1
        return self.batch

    @property
    def count(self) -> int:
        name = self.specs[0].name
        rows, per_call = self.members[name][0][0], self.per_call(name)
        if extra := rows % per_call:
            fix = f"remove {extra}" if rows > per_call else f"add {per_call - extra}"
            raise InputError(
                f"{self.source}: the number of rows of {name!r}, {rows}, is not a multiple of the model's batch size "
                f"{per_call}: {fix}"
            )
        return rows // per_call

    def rows(self, name: str, number: int) -> slice:
        size = self.per_call(name)
        return slice(number * size, (number + 1) * size)

    def checked(self, rows: Mapping[str, Array], number: int) -> Sample:
        ranks = {s.name: len(s.shape) for s in self.specs}
        sample = {n: a[0] if n in ranks and a.ndim == ranks[n] + 1 else a for n, a in rows.items()}
        return check_sample(sample, self.specs, self.source, number)


def _npy_header(stream: IO[bytes], name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    try:
        version = np.lib.format.read_magic(stream)
        reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = reader(stream)
    except ValueError as error:
        raise InputError(f"{name} is not a NumPy array ({error})") from error
    if fortran and len(shape) > 1:
        raise InputError(f"{name} is in Fortran order, which cannot be read sample by sample: save it in C order")
    if dtype.hasobject:
        raise InputError(f"{name} contains Python objects, not numbers")
    return shape, dtype


def _read_rows(stream: IO[bytes], label: str, shape: tuple[int, ...], dtype: np.dtype[Any], rows: int) -> Array:
    inner = shape[1:]
    size = rows * int(np.prod(inner, dtype=np.int64)) * dtype.itemsize
    content = stream.read(size)
    if len(content) != size:
        raise InputError(f"{label} is truncated: it ends before its last sample; write the file again")
    return np.frombuffer(content, dtype=dtype).reshape(rows, *inner)


def _from_folder(path: Path, specs: tuple[InputSpec, ...], images: ImageOptions | None) -> Data:
    arrays = sorted(path.glob("*.npy"))
    image_files = sorted(p for p in path.iterdir() if p.suffix.lower() in _IMAGE_SUFFIXES)
    if len(specs) != 1 and (arrays or image_files):
        raise InputError(f"{path}: a folder provides one input, the model has {len(specs)}: use an .npz file")
    if arrays:
        return Data(path.name, lambda: _npy_samples(arrays, specs), len(arrays))
    if image_files:
        from dovetail.calibrate.images import image_samples

        options = images or ImageOptions()
        return Data(path.name, lambda: image_samples(image_files, specs[0], options), len(image_files))
    raise InputError(f"{path}: the folder contains no .npy files and no images")


def _npy_samples(files: list[Path], specs: tuple[InputSpec, ...]) -> Iterator[Sample]:
    spec = specs[0]
    for number, file in enumerate(files):
        try:
            array = np.load(file, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise InputError(f"{file} is not a NumPy array ({error})") from error
        if array.ndim == len(spec.shape) - 1:
            array = array[None]
        yield check_sample({spec.name: array}, specs, file.name, number)


def _from_function(function: Callable[[], Any], name: str, specs: tuple[InputSpec, ...]) -> Data:
    def samples() -> Iterator[Sample]:
        for number, sample in enumerate(items_of(function, name)):
            if not isinstance(sample, Mapping):
                raise InputError(f"{name} yields {type(sample).__name__}, but must yield dicts of input name to array")
            yield check_sample(sample, specs, name, number)

    return Data(name, samples)


def _random(text: str, specs: tuple[InputSpec, ...]) -> Data:
    """Return random noise, which the result marks as such."""
    digits = text.removeprefix("random").removeprefix(":")
    count = whole_number(digits) if digits else RANDOM_SAMPLES
    if count is None:
        raise InputError(f"{text}: expected random:N with N samples, for example random:16")

    def samples() -> Iterator[Sample]:
        generator = np.random.default_rng(0)
        for _ in range(count):
            yield {s.name: _noise(generator, s) for s in specs}

    return Data(text, samples, count, random=True)


def _noise(generator: np.random.Generator, spec: InputSpec) -> Array:
    if spec.dtype.kind == "f":
        return generator.standard_normal(spec.shape).astype(spec.dtype)
    return generator.integers(0, 2, spec.shape).astype(spec.dtype)
