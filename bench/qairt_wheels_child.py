"""Compile one model with the onnxruntime-qnn wheel of this environment; CPU fallback is an error."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from bench.child import ROOT, run_request


def compile_model(request: Mapping[str, Any]) -> dict[str, str]:
    """Open a session; the error is that of the provider."""
    sys.path.insert(0, str(ROOT / "src"))
    from dovetail.targets.qnn_htp.session import open_session

    try:
        open_session(request["model"], request["options"])
    except Exception as error:  # noqa: BLE001 - whatever the vendor's component raises is the result
        return {"error": " ".join(str(error).split())[:200]}
    return {"error": ""}


if __name__ == "__main__":
    run_request(compile_model)
