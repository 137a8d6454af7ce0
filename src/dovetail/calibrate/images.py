"""Images as model inputs: decoded with Pillow, resized, normalized, in NCHW or NHWC layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dovetail.backend import Sample
from dovetail.calibrate.data import InputSpec, check_sample
from dovetail.errors import InputError

if TYPE_CHECKING:
    from dovetail.calibrate.sources import ImageOptions


def image_samples(files: Sequence[Path], spec: InputSpec, options: ImageOptions) -> Iterator[Sample]:
    """Yield one sample per image, in the order given; a model with a batch above one is refused."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise InputError("reading images requires Pillow: pip install 'dovetail-fit[images]'") from error
    channels, height, width = _image_shape(spec, options)
    for name, values in (("mean", options.mean), ("std", options.std)):
        if len(values) not in (1, channels):
            raise InputError(f"--{name} has {len(values)} values, {spec.name!r} has {channels} channels")
    for number, file in enumerate(files):
        try:
            with Image.open(file) as image:
                pixels = image.convert("RGB" if channels == 3 else "L").resize((width, height))
        except (OSError, UnidentifiedImageError) as error:
            raise InputError(f"{file} cannot be read as an image ({error})") from error
        array = np.asarray(pixels, dtype=np.float32).reshape(height, width, channels) / np.float32(255)
        array = np.divide(array - np.asarray(options.mean, np.float32), np.asarray(options.std, np.float32))
        if options.layout == "nchw":
            array = array.transpose(2, 0, 1)
        yield check_sample({spec.name: array[None]}, (spec,), file.name, number)


def _image_shape(spec: InputSpec, options: ImageOptions) -> tuple[int, int, int]:
    if len(spec.shape) != 4 or spec.shape[0] != 1:
        raise InputError(f"images require a model input of rank 4 and batch 1; {spec.name!r} has shape {spec.shape}")
    if options.layout not in ("nchw", "nhwc"):
        raise InputError(f"--layout {options.layout}: expected one of nchw, nhwc")
    first, second, third = spec.shape[1:]
    channels, height, width = (first, second, third) if options.layout == "nchw" else (third, first, second)
    if channels not in (1, 3):
        raise InputError(f"{spec.name!r} has {channels} channels in layout {options.layout}: images have 1 or 3")
    if options.size is not None and options.size != (height, width):
        raise InputError(
            f"--size {options.size[0]},{options.size[1]} differs from the size of {spec.name!r}, {height},{width}"
        )
    return channels, height, width
