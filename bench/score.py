"""Score a QDQ model from any tool against the float model's outputs, in three ONNX Runtime session modes."""

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
HELD_OUT_IMAGES = 8
TIMED = 200  # samples that also run on the float model, interleaved, to measure the slowdown
VIT_TINY = "vit_tiny"
TOKEN_SCALE = 0.2  # as in trained models; see vit_tiny

# Session mode -> the session's configuration.
SESSION_MODES: dict[str, dict[str, str]] = {
    # Every QuantizeLinear and DequantizeLinear computes what the ONNX standard defines; nothing is fused.
    "exact": {"session.disable_quant_qdq": "1"},
    # No settings.
    "default": {},
    # As Dovetail deploys: 8-bit kernels that do not saturate on x86 without VNNI.
    "precise": {"session.x64quantprecision": "1"},
}


@dataclass(frozen=True)
class Subject:
    """A float model, its calibration samples, and the held-out samples for scoring."""

    name: str
    path: Path
    calibration: Arrays
    held_out: Arrays
    targets: Arrays | None = None
    metric: Callable[..., Mapping[str, float]] | None = None


@dataclass(frozen=True)
class Score:
    """The figures of one model in one session mode."""

    sqnr_db: float  # of the worst output
    accuracy: float  # the metric's first figure; top-1 agreement with float if there is no metric
    slowdown: float  # CPU time of inference relative to the float model, interleaved


def load_subject(name: str, folder: Path, *, samples: int, held_out: int | None = None, layers: int = 12) -> Subject:
    """Load a shipped model or generate the ViT-tiny; ``held_out`` limits the number of samples to score."""
    if name == VIT_TINY:
        images = pictures(samples + (held_out or HELD_OUT_IMAGES))
        return Subject(
            name, save(folder, layers, TOKEN_SCALE), {"image": images[:samples]}, {"image": images[samples:]}
        )
    model = zoo.load(name)
    calibration = {key: array[:samples] for key, array in model.calib().items()}
    inputs = {key: array[:held_out] for key, array in model.eval().items()}
    targets = {key: array[:held_out] for key, array in model.targets().items()}
    return Subject(name, model.model_path, calibration, inputs, targets, load_function(model.metric))


class Scorer:
    """Compares quantized models with one float model on held-out samples."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.samples = list(zoo.samples(subject.held_out))
        self.targets = None if subject.targets is None else list(zoo.samples(subject.targets))
        self._float = self._session(subject.path, {})
        self._reference = [outputs for _, outputs in self._run(self._float)]
        self.float_accuracy = self._accuracy(self._reference)

    def score(self, path: Path, mode: str) -> Score:
        """Score a model in one session mode; raises ONNX Runtime's own error if the model does not load."""
        session = self._session(path, SESSION_MODES[mode])
        session.run(None, self.samples[0])
        runs = self._run(session)
        interleaved = list(zip(itertools.islice(self._run(self._float), TIMED), runs, strict=False))
        float_s, seconds = (sum(pair[side][0] for pair in interleaved) for side in (0, 1))
        outputs = [outputs for _, (_, outputs) in interleaved] + [outputs for _, outputs in runs]
        agreement = compare_runs(self._reference, outputs)
        return Score(min(agreement.sqnr_db().values()), self._accuracy(outputs), seconds / float_s)

    def _session(self, path: Path, configuration: Mapping[str, str]) -> onnxruntime.InferenceSession:
        options = single_threaded()
        options.log_severity_level = 4
        for key, value in configuration.items():
            options.add_session_config_entry(key, value)
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def _run(self, session: onnxruntime.InferenceSession) -> Iterator[tuple[float, Arrays]]:
        """Yield CPU seconds and outputs for each sample."""
        names = [output.name for output in session.get_outputs()]
        for feed in self.samples:
            start = time.process_time()
            outputs = session.run(names, feed)
            yield time.process_time() - start, dict(zip(names, outputs, strict=True))

    def _accuracy(self, outputs: Iterable[Arrays]) -> float:
        if self.subject.metric is None or self.targets is None:
            classes = self._reference[0].keys()  # the generated ViT-tiny is a classifier
            return next(iter(compare_runs(self._reference, outputs, classes=classes).top1.values()))
        figures = self.subject.metric(_stream(outputs), _stream(self.targets))
        return next(iter(figures.values()))


def _stream(samples: Iterable[Arrays]) -> Iterator[Arrays]:
    yield from samples
