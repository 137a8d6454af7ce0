"""Where samples can come from: an ``.npz``, a folder of ``.npy`` or images, a Python function, arrays, or noise."""

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
from dovetail.calibrate.user_code import each_of, load_function
from dovetail.encoding import Array
from dovetail.errors import InputError
from dovetail.whole_number import whole_number

RANDOM_SAMPLES = 8
# What reading a damaged archive raises; RuntimeError is for one that is encrypted or packed in an unknown way.
_ARCHIVE_ERRORS = (OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
_IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff")


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """How a picture becomes an input: resized, scaled to 0..1, then (x - mean) / std, in the layout given."""

    size: tuple[int, int] | None = None
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    layout: str = "nchw"


DataLike = str | Path | Mapping[str, Array] | Callable[[], Iterable[Mapping[str, Array]]] | Data


def open_data(
    what: DataLike, specs: tuple[InputSpec, ...], *, images: ImageOptions | None = None, extra: bool = False
) -> Data:
    """The samples in ``what``; ``extra`` arrays (targets of a metric) are allowed only where asked for."""
    if isinstance(what, Data):
        return what
    if isinstance(what, Mapping):
        return _from_arrays(what, specs, extra)
    if callable(what):
        return _from_function(what, getattr(what, "__qualname__", "function"), specs)
    if not isinstance(what, str | Path):
        wanted = "arrays by input name, a function that yields samples, or a path"
        raise InputError(f"calibration or evaluation data cannot be a {type(what).__name__}: give {wanted}")
    text = str(what)
    if is_random(text):
        return _random(text, specs)
    path = Path(text)
    if path.suffix == ".npz":
        return _from_npz(path, specs, extra)
    if path.is_dir():
        return _from_folder(path, specs, images)
    if ":" in text and not path.exists():
        return _from_function(load_function(text), text, specs)
    raise InputError(f"{text}: not an .npz file, a folder of .npy or pictures, module:function, or the word random")


def is_random(text: str) -> bool:
    """Whether noise was asked for by name: ``random`` or ``random:16``."""
    return text.partition(":")[0] == "random"


def _from_arrays(arrays: Mapping[str, Array], specs: tuple[InputSpec, ...], extra: bool) -> Data:
    members = {name: (np.asarray(a).shape, np.asarray(a).dtype) for name, a in arrays.items()}
    cut = _Cut("arrays", members, specs, extra)

    def samples() -> Iterator[Sample]:
        for number in range(cut.count):
            yield cut.checked({name: np.asarray(a)[cut.rows(name, number)] for name, a in arrays.items()}, number)

    return Data("arrays", samples, cut.count)


def _from_npz(path: Path, specs: tuple[InputSpec, ...], extra: bool) -> Data:
    """An ``.npz`` read member by member in pieces: ``np.load`` would hold whole arrays."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {}
            for entry in archive.namelist():
                with archive.open(entry) as stream:
                    shape, dtype = _npy_header(stream, f"{path.name}:{entry}")
                members[entry.removesuffix(".npy")] = (shape, dtype)
    except _ARCHIVE_ERRORS as error:
        raise InputError(f"{path}: cannot be read as .npz ({error})") from error
    cut = _Cut(path.name, members, specs, extra)

    def samples() -> Iterator[Sample]:
        try:
            with zipfile.ZipFile(path) as archive:
                streams = {name: archive.open(f"{name}.npy") for name in members}
                for name, stream in streams.items():
                    _npy_header(stream, name)
                for number in range(cut.count):
                    rows = {n: _read_rows(s, *members[n], cut.per_call(n)) for n, s in streams.items()}
                    yield cut.checked(rows, number)
        except _ARCHIVE_ERRORS as error:
            raise InputError(f"{path}: cannot be read as .npz ({error})") from error

    return Data(path.name, samples, cut.count)


@dataclass(frozen=True, slots=True)
class _Cut:
    """How arrays with samples along their first axis are cut into model calls.

    An array of the input's rank gives batches of the model's own batch size; one of one rank more gives whole inputs.
    """

    source: str
    members: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
    specs: tuple[InputSpec, ...]
    extra: bool

    def __post_init__(self) -> None:
        known = {spec.name for spec in self.specs}
        unknown = sorted(set(self.members) - known)
        if unknown and not self.extra:
            inputs = ", ".join(sorted(known))
            raise InputError(
                f"{self.source}: array {unknown[0]!r} is not an input of the model; its inputs are {inputs}"
            )
        for name, (shape, _) in self.members.items():
            if not shape:
                raise InputError(f"{self.source}: {name!r} is a single number: samples lie along the first axis")
        for spec in self.specs:
            if spec.name not in self.members:
                raise InputError(f"{self.source}: no array for the model input {spec.name!r}")
            shape = self.members[spec.name][0]
            rank = len(spec.shape)
            if len(shape) not in (rank, rank + 1) or shape[len(shape) - rank + 1 :] != spec.shape[1:]:
                raise InputError(f"{self.source}: {spec.name!r} is {shape}, the model takes {spec.shape} per call")
        counts = {name: shape[0] // self.per_call(name) for name, (shape, _) in self.members.items()}
        if len(set(counts.values())) > 1:
            words = ", ".join(f"{name} {count}" for name, count in counts.items())
            raise InputError(f"{self.source}: the arrays hold different numbers of samples: {words}")

    @property
    def batch(self) -> int:
        """How many rows one call takes: the model's batch, where an array of the input's own rank is given."""
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
        if rows % per_call:
            raise InputError(f"{self.source}: {rows} samples of {name!r} do not divide by the model's batch {per_call}")
        return rows // per_call

    def rows(self, name: str, number: int) -> slice:
        size = self.per_call(name)
        return slice(number * size, (number + 1) * size)

    def checked(self, rows: Mapping[str, Array], number: int) -> Sample:
        ranks = {s.name: len(s.shape) for s in self.specs}
        whole = {n: a[0] if n in ranks and a.ndim == ranks[n] + 1 else a for n, a in rows.items()}
        return check_sample(whole, self.specs, self.source, number)


def _npy_header(stream: IO[bytes], name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    try:
        version = np.lib.format.read_magic(stream)
        reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = reader(stream)
    except ValueError as error:
        raise InputError(f"{name}: not a NumPy array ({error})") from error
    if fortran and len(shape) > 1:
        raise InputError(f"{name}: stored in Fortran order, which cannot be read in pieces: save it in C order")
    if dtype.hasobject:
        raise InputError(f"{name}: holds Python objects, not numbers")
    return shape, dtype


def _read_rows(stream: IO[bytes], shape: tuple[int, ...], dtype: np.dtype[Any], rows: int) -> Array:
    inner = shape[1:]
    size = rows * int(np.prod(inner, dtype=np.int64)) * dtype.itemsize
    content = stream.read(size)
    if len(content) != size:
        raise InputError("the .npz ends before its last sample")
    return np.frombuffer(content, dtype=dtype).reshape(rows, *inner)


def _from_folder(path: Path, specs: tuple[InputSpec, ...], images: ImageOptions | None) -> Data:
    arrays = sorted(path.glob("*.npy"))
    pictures = sorted(p for p in path.iterdir() if p.suffix.lower() in _IMAGE_SUFFIXES)
    if len(specs) != 1 and (arrays or pictures):
        raise InputError(f"{path}: the model has {len(specs)} inputs; a folder can serve one, use an .npz")
    if arrays:
        return Data(path.name, lambda: _npy_samples(arrays, specs), len(arrays))
    if pictures:
        from dovetail.calibrate.images import image_samples

        options = images or ImageOptions()
        return Data(path.name, lambda: image_samples(pictures, specs[0], options), len(pictures))
    raise InputError(f"{path}: there is no .npy file and no picture in this folder")


def _npy_samples(files: list[Path], specs: tuple[InputSpec, ...]) -> Iterator[Sample]:
    spec = specs[0]
    for number, file in enumerate(files):
        try:
            array = np.load(file, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise InputError(f"{file}: not a NumPy array ({error})") from error
        if array.ndim == len(spec.shape) - 1:
            array = array[None]
        yield check_sample({spec.name: array}, specs, file.name, number)


def _from_function(function: Callable[[], Any], name: str, specs: tuple[InputSpec, ...]) -> Data:
    def samples() -> Iterator[Sample]:
        for number, sample in enumerate(each_of(function, name)):
            if not isinstance(sample, Mapping):
                raise InputError(f"{name}: yields {type(sample).__name__}, it must yield dicts of input name to array")
            yield check_sample(sample, specs, name, number)

    return Data(name, samples)


def _random(text: str, specs: tuple[InputSpec, ...]) -> Data:
    """Noise that was asked for by name; marked as such wherever it is used."""
    number = text.removeprefix("random").removeprefix(":")
    count = whole_number(number) if number else RANDOM_SAMPLES
    if count is None:
        raise InputError(f"{text}: after random: comes how many samples, as in random:16")

    def samples() -> Iterator[Sample]:
        generator = np.random.default_rng(0)
        for _ in range(count):
            yield {s.name: _noise(generator, s) for s in specs}

    return Data(text, samples, count, random=True)


def _noise(generator: np.random.Generator, spec: InputSpec) -> Array:
    if spec.dtype.kind == "f":
        return generator.standard_normal(spec.shape).astype(spec.dtype)
    return generator.integers(0, 2, spec.shape).astype(spec.dtype)
