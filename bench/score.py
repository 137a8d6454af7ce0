"""Scoring an emitted QDQ model, whoever emitted it: three ways of running it, against the float model's outputs."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
from tests.networks.vit_tiny import pictures, save

from bench.peer import single_threaded
from dovetail import zoo
from dovetail.calibrate.sources import load_function
from dovetail.verify.compare import compare_runs

Arrays = Mapping[str, np.ndarray]
HELD_OUT_PICTURES = 8
TIMED = 200  # samples that also run on the float model, in turn
VIT_TINY = "vit_tiny"
TOKEN_SCALE = 0.2  # as in trained models; see vit_tiny

# How a QDQ model is run -> the session's configuration.
WAYS: dict[str, dict[str, str]] = {
    # Every QuantizeLinear and DequantizeLinear does what ONNX says.
    "exact": {"session.disable_quant_qdq": "1"},
    # What a caller gets who sets nothing.
    "default": {},
    # As dovetail deploys: 8-bit kernels that do not saturate on x86 without VNNI.
    "precise": {"session.x64quantprecision": "1"},
}


@dataclass(frozen=True)
class Subject:
    """A float model, samples to calibrate it with, and held-out samples to score it on."""

    name: str
    path: Path
    calibration: Arrays
    held_out: Arrays
    targets: Arrays | None = None
    metric: Callable[..., Mapping[str, float]] | None = None


@dataclass(frozen=True)
class Score:
    """One way of running one model."""

    sqnr_db: float  # of the worst output
    accuracy: float  # the metric's first figure; top-1 agreement with float where there is no metric
    slowdown: float  # CPU time of the forwards over that of the float model's, run in turn


def subject(name: str, folder: Path, *, samples: int, held_out: int | None = None, layers: int = 12) -> Subject:
    """The generated ViT-tiny, or a shipped model; ``held_out`` limits what is scored."""
    if name == VIT_TINY:
        images = pictures(samples + (held_out or HELD_OUT_PICTURES))
        return Subject(
            name, save(folder, layers, TOKEN_SCALE), {"image": images[:samples]}, {"image": images[samples:]}
        )
    model = zoo.load(name)
    few = {key: array[:samples] for key, array in model.calib().items()}
    kept = {key: array[:held_out] for key, array in model.eval().items()}
    targets = {key: array[:held_out] for key, array in model.targets().items()}
    return Subject(name, model.model_path, few, kept, targets, load_function(model.metric))


class Scorer:
    """Compares models with one float model on its held-out samples."""

    def __init__(self, about: Subject) -> None:
        self.about = about
        self.samples = list(zoo.samples(about.held_out))
        self.targets = None if about.targets is None else list(zoo.samples(about.targets))
        self._float = self._session(about.path, {})
        self._reference = [outputs for _, outputs in self._run(self._float)]
        self.float_accuracy = self._accuracy(self._reference)

    def score(self, path: Path, way: str) -> Score:
        """Raises what ONNX Runtime raises where it cannot load the model in this way."""
        session = self._session(path, WAYS[way])
        session.run(None, self.samples[0])
        runs = self._run(session)
        in_turn = list(zip(itertools.islice(self._run(self._float), TIMED), runs, strict=False))
        float_s, seconds = (sum(pair[side][0] for pair in in_turn) for side in (0, 1))
        outputs = [outputs for _, (_, outputs) in in_turn] + [outputs for _, outputs in runs]
        agreement = compare_runs(self._reference, outputs)
        return Score(min(agreement.sqnr_db().values()), self._accuracy(outputs), seconds / float_s)

    def _session(self, path: Path, configuration: Mapping[str, str]) -> onnxruntime.InferenceSession:
        options = single_threaded()
        options.log_severity_level = 4
        for key, value in configuration.items():
            options.add_session_config_entry(key, value)
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def _run(self, session: onnxruntime.InferenceSession) -> Iterator[tuple[float, Arrays]]:
        """CPU seconds and outputs, sample by sample."""
        names = [output.name for output in session.get_outputs()]
        for feed in self.samples:
            start = time.process_time()
            outputs = session.run(names, feed)
            yield time.process_time() - start, dict(zip(names, outputs, strict=True))

    def _accuracy(self, outputs: Iterable[Arrays]) -> float:
        if self.about.metric is None or self.targets is None:
            classes = self._reference[0].keys()  # the generated network is a classifier
            return next(iter(compare_runs(self._reference, outputs, classes=classes).top1.values()))
        figures = self.about.metric(_stream(outputs), _stream(self.targets))
        return next(iter(figures.values()))


def _stream(some: Iterable[Arrays]) -> Iterator[Arrays]:
    yield from some
