"""The networks of the HTP zoo with the data to calibrate them, and their naive exports."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from tests.equality import Array
from tests.networks import backbones, catalog, detectors, encoders, pretrained, unusual
from tests.networks.hugging_face import MODELS
from tests.networks.images import images

from dovetail.targets.htp.chips import chip_named
from dovetail.targets.qnn_htp.naive import export_naive
from dovetail.targets.qnn_htp.options import read_options

PRECISIONS = ("w8a16", "w8a8")
_SAMPLES = 4
_OPTIONS = read_options(chip_named("sm8550"), {})


@dataclass(frozen=True, slots=True)
class Network:
    """A float network: its file, the images that it is calibrated with, and the shapes of inputs with a free size."""

    path: Callable[[], Path]
    data: Callable[[], Mapping[str, Array]]
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def _random(name: str) -> Network:
    return Network(lambda: catalog.network(name), lambda: images(_input_shape(name), _SAMPLES))


def _input_shape(name: str) -> tuple[int, ...]:
    if name in detectors.NETWORKS:
        return detectors.NETWORKS[name][1]
    if name in unusual.NETWORKS:
        return unusual.NETWORKS[name][1]
    sizes = {key: row[1] for table in (MODELS, backbones.NETWORKS, encoders.NETWORKS) for key, row in table.items()}
    side = MODELS[name.removesuffix(catalog.PLAIN)][1] if name.endswith(catalog.PLAIN) else sizes[name]
    return (1, 3, side, side)


def _pretrained(name: str) -> Network:
    network = pretrained.NETWORKS[name]
    return Network(
        lambda: network.path,
        lambda: {key: array[:_SAMPLES] for key, array in network.calibration().items()},
        network.shape,
    )


# By name: with random weights and every operator of the real ones, and with their real weights.
NETWORKS: Mapping[str, Network] = {
    **{name: _random(name) for name in (*catalog.NETWORKS, *unusual.NETWORKS)},
    **{name: _pretrained(name) for name in pretrained.NETWORKS},
}


def export(network: Network, precision: str, path: Path) -> str:
    """Write the naive export of a network; return why it failed, or an empty string."""
    data = network.data()
    rows = [{name: np.asarray(array[row : row + 1]) for name, array in data.items()} for row in range(_SAMPLES)]
    with tempfile.TemporaryDirectory(prefix="dovetail-bench-") as folder:
        original = _pinned(network, Path(folder) / "original.onnx")
        return export_naive(_OPTIONS, original, precision, rows, {}, path)


def _pinned(network: Network, path: Path) -> Path:
    """Write the network with its shapes pinned, and without what onnxruntime 1.31.1's preprocessing fails on.

    It fails on a file with metadata, and pins one size wherever two dimensions have the same name.
    """
    model = onnx.load(network.path())
    del model.metadata_props[:]
    for value in model.graph.input:
        if value.name in network.shapes:
            del model.graph.value_info[:]
            del value.type.tensor_type.shape.dim[:]
            for size in network.shapes[value.name]:
                value.type.tensor_type.shape.dim.add().dim_value = size
    if network.shapes:
        for value in model.graph.output:
            for dim in value.type.tensor_type.shape.dim:
                dim.Clear()
    onnx.save(model, path)
    return path
