from __future__ import annotations
from pathlib import Path
from dovetail.storage import Plan
from dovetail.target import ReadBack
def read_optimized(path: Path, plan: Plan) -> ReadBack:
    raise NotImplementedError
