"""Reading the outputs of a device: .npy, .npz, .json or .raw files per sample, all checked before any is compared."""

from __future__ import annotations

import json
import math
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dovetail.backend import DeviceTensor, Sample
from dovetail.device.manifest import Manifest, file_name
from dovetail.encoding import Array, DType, Encoding, QParams
from dovetail.errors import InputError
from dovetail.numerics.affine import dequantize

# A sample's folder, as run_on_device.py names it, or qnn-net-run.
_SAMPLE = re.compile(r"(?:Result_)?(\d+)")
_SUFFIXES = (".npy", ".npz", ".raw", ".json")
# Files that hold all outputs of a sample, by name; .json is what trtexec exports.
_WHOLE = (".npz", ".json")
# trtexec writes NaN and infinity as C does, which is not valid JSON.
_NOT_JSON = re.compile(r"(?<=[\s,\[-])(nan|inf)(?=[\s,\]])")
_JSON = {"nan": "NaN", "inf": "Infinity"}
# The suffix that qnn-net-run appends with --use_native_output_files, which writes quantized outputs as integers.
_NATIVE = "_native"


@dataclass(frozen=True, slots=True)
class OutputFile:
    """Where one array is: a file, and its name in it if the file holds several."""

    path: Path
    name: str = ""

    def __str__(self) -> str:
        return f"{self.path}:{self.name}" if self.name else str(self.path)


# Output name -> where it is, for one sample.
OutputFiles = Mapping[str, OutputFile]


def find_outputs(folder: Path, manifest: Manifest) -> list[OutputFiles]:
    """Return per sample where every output is; a missing or unknown sample or output is refused by name."""
    places = _samples(folder, manifest.samples)
    if not places:
        expected = "000/NAME.npy, 000.npz, 000.json or Result_0/NAME.raw"
        raise InputError(f"{folder} contains no outputs of a device; expected files such as {expected}")
    for number in range(manifest.samples):
        if number not in places:
            raise InputError(f"{folder} has no sample {number}; the device folder has {manifest.samples} samples")
    return [_outputs(places[number], manifest) for number in range(manifest.samples)]


def read_outputs(samples: list[OutputFiles], manifest: Manifest) -> Iterator[Sample]:
    """Yield the dequantized outputs, one sample at a time; an array of another shape or dtype is refused."""
    for files in samples:
        yield {tensor.name: _dequantized(files[tensor.name], tensor) for tensor in manifest.outputs}


def _samples(folder: Path, count: int) -> dict[int, Path]:
    """Sample number -> its folder, or its .npz or .json file."""
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise InputError(f"the folder with the device outputs, {folder}, cannot be read ({error.strerror})") from error
    places: dict[int, Path] = {}
    for entry in entries:
        if not entry.is_dir() and entry.suffix not in _WHOLE:
            continue
        match = _SAMPLE.fullmatch(entry.name if entry.is_dir() else entry.stem)
        if match is None:
            continue
        number = int(match[1])
        if number in places:
            raise InputError(
                f"{folder} has sample {number} twice, as {places[number].name} and as {entry.name}; remove one"
            )
        if number >= count:
            raise InputError(f"{entry} is sample {number}, but the device folder has only {count} samples")
        places[number] = entry
    return places


def _outputs(place: Path, manifest: Manifest) -> OutputFiles:
    """Return where the outputs of one sample are."""
    names = {variant: t.name for t in manifest.outputs for variant in (t.file, t.file + _NATIVE)}
    output_files: dict[str, OutputFile] = {}
    paths = [place] if place.is_file() else sorted(path for path in place.iterdir() if path.suffix in _SUFFIXES)
    for path in paths:
        for file in _members(path):
            label = file.name or path.stem
            native = f"{file_name(label.removesuffix(_NATIVE))}{_NATIVE}"  # a long name is shortened without the suffix
            name = names.get(file_name(label)) or (names.get(native) if label.endswith(_NATIVE) else None)
            if name is None:
                expected = ", ".join(tensor.name for tensor in manifest.outputs)
                raise InputError(
                    f"{path} has the output {label!r}, which the model does not have; expected one of {expected}"
                )
            if name in output_files:
                raise InputError(
                    f"{file} has the output {name!r}, which is also in {output_files[name].path.name}; remove one"
                )
            output_files[name] = file
    for tensor in manifest.outputs:
        if tensor.name not in output_files:
            raise InputError(f"{place} has no output {tensor.name!r}")
    return output_files


def _members(path: Path) -> list[OutputFile]:
    if path.suffix == ".json":
        return [OutputFile(path, name) for name in _exported(path)]
    if path.suffix != ".npz":
        return [OutputFile(path)]
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return [OutputFile(path, name) for name in arrays.files]
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} is not an .npz file ({error})") from error


def _exported(path: Path) -> dict[str, Array]:
    """Read the outputs in a file that trtexec exported: name, dimensions as 1x10, values."""
    try:
        rows = json.loads(_NOT_JSON.sub(lambda match: _JSON[match[1]], path.read_text()))
        return {
            row["name"]: np.asarray(row["values"], np.float32).reshape([int(n) for n in row["dimensions"].split("x")])
            for row in rows
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is not in the format that the vendor's tool exports ({error})") from error


def _dequantized(file: OutputFile, tensor: DeviceTensor) -> Array:
    """Read one output, dequantized if it is quantized in the graph."""
    array = _raw(file.path, tensor) if file.path.suffix == ".raw" else _load(file, tensor)
    if tensor.scale is None or tensor.zero_point is None or array.dtype.kind == "f":
        return array
    params = QParams(Encoding(DType(tensor.dtype)), np.array(tensor.scale), np.array(tensor.zero_point))
    return dequantize(array, params)


def _raw(path: Path, tensor: DeviceTensor) -> Array:
    """Read a raw little-endian file; a tool may have written a quantized output as float32."""
    dtypes = [np.dtype(tensor.dtype)] + ([np.dtype(np.float32)] if tensor.scale is not None else [])
    content, count = _bytes(path), math.prod(tensor.shape)
    for dtype in dtypes:
        if len(content) == count * dtype.itemsize:
            return np.frombuffer(content, dtype.newbyteorder("<")).reshape(tensor.shape).astype(dtype)
    expected = count * dtypes[0].itemsize
    raise InputError(f"{path} has {len(content)} bytes; {_described(tensor)}, which requires {expected}")


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from error


def _load(file: OutputFile, tensor: DeviceTensor) -> Array:
    """Load an array from a file that holds its shape."""
    if file.path.suffix == ".json":
        return _checked(file, _exported(file.path)[file.name], tensor)
    try:
        loaded = np.load(file.path, allow_pickle=False)
        array = np.asarray(loaded[file.name] if file.name else loaded)
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(f"{file} is not an array ({error})") from error
    return _checked(file, array, tensor)


def _checked(file: OutputFile, array: Array, tensor: DeviceTensor) -> Array:
    same_dtype = array.dtype == np.dtype(tensor.dtype) or (array.dtype.kind == "f" and _takes_float(tensor))
    if array.shape != tensor.shape or not same_dtype:
        raise InputError(f"{file} is {array.dtype} {list(array.shape)}; {_described(tensor)}")
    return array


def _takes_float(tensor: DeviceTensor) -> bool:
    return tensor.scale is not None or np.dtype(tensor.dtype).kind == "f"


def _described(tensor: DeviceTensor) -> str:
    return f"output {tensor.name!r} is {tensor.dtype} {list(tensor.shape)}"
