"""Load and run float models once; called in a child process, because ONNX Runtime crashes on some graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dovetail.errors import BackendError
from dovetail.model.session import Mode, open_session, run_session

# Printed before every model, so that the log says at which one the process ended.
MARK = "dovetail tries: "


def try_in_child(models: list[str], inputs: dict[str, list[Any]]) -> dict[str, Any]:
    """Run each model on zeros; ``inputs``: name -> dtype and shape. Returns what ONNX Runtime reported, by model."""
    errors = {}
    for model in models:
        print(f"{MARK}{model}", flush=True)
        feed = {name: np.zeros(shape, dtype) for name, (dtype, shape) in inputs.items()}
        try:
            run_session(open_session(Path(model), Mode.FLOAT), feed)
        except BackendError as error:
            errors[model] = str(error)
    return {"errors": errors}
