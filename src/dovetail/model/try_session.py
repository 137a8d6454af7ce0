"""Load and run a float model once; called in a child process, because ONNX Runtime crashes on some graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dovetail.model.session import Mode, open_session, run_session


def try_in_child(model: str, inputs: dict[str, list[Any]]) -> dict[str, Any]:
    """Run a model on zeros; ``inputs``: name -> dtype and shape."""
    feed = {name: np.zeros(shape, dtype) for name, (dtype, shape) in inputs.items()}
    outputs = run_session(open_session(Path(model), Mode.FLOAT), feed)
    return {"outputs": sorted(outputs)}
