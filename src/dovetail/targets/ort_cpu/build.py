"""Building an ONNX Runtime session, called in a child process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dovetail.model.session import Mode, open_session


def build_in_child(model: str, optimized: str) -> dict[str, Any]:
    """Build a session, and write the optimized graph."""
    import onnxruntime

    open_session(Path(model), Mode.DEPLOYED, optimized_to=Path(optimized))
    return {"version": onnxruntime.__version__}
