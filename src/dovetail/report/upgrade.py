"""Results of older schema versions, brought to the next one: nothing that they say is lost.

A document is upgraded as it was decoded, key by key, because the records of its time are gone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dovetail.document import Upgrade

Raw = dict[str, Any]

# Version 1 had one code for all that a compiler said: code, what the message says, the code that it has now.
_CODES_OF_1 = (
    ("TRT", r"^attention is not one kernel", "Q821"),
    ("TRT", r"^no layer of the list", "Q822"),
    ("qnn-htp", r"was made by QAIRT", "Q701"),
    ("qnn-htp", r"could not be read from it$", "Q702"),
    ("qnn-htp", r"^no DLC was made", "Q703"),
    ("qnn-htp", r"^it was compiled for HTP", "Q704"),
    ("qnn-htp", r"is refused by the compiler", "Q801"),
    ("qnn-htp", r"^the compiler's log names no refused node", "Q807"),
    ("qnn-htp", r"^the compiler took it and said: .*scale too large for requant", "Q809"),
    ("qnn-htp", r"^the compiler took it and said", "Q808"),
)


def from_version_1(raw: Raw) -> Raw:
    """Places as records, edges as ``node:index``, read-back rows in the caller's names, a code per kind of message."""
    names = {_edge(row["edge"]) or row["tensor"]: row["original_name"] for row in raw["plan"]}
    return {
        **raw,
        "schema_version": 2,
        "findings": [_finding_of_1(row) for row in raw["findings"]],
        "read_back": [_read_back_of_1(row, names) for row in raw["read_back"]],
        "metrics": _metrics_of_1(raw["metrics"]),
    }


def _finding_of_1(row: Raw) -> Raw:
    """The place of version 1 was a text; what it names is not said, so it stays one."""
    kept = {key: value for key, value in row.items() if key != "where"}
    place = {"kind": "text", "name": row["where"]}
    return {**kept, "code": _code_of_1(row["code"], row["message"]), "place": place}


def _code_of_1(code: str, message: str) -> str:
    return next((new for old, words, new in _CODES_OF_1 if old == code and re.search(words, message)), code)


def _read_back_of_1(row: Raw, names: Mapping[str, str]) -> Raw:
    """``tensor`` was the name in the planned or emitted graph; the plan of the same result has the caller's."""
    edge = _edge(row["edge"])
    return {**row, "edge": edge, "emitted": row["tensor"], "tensor": names.get(edge or row["tensor"], row["tensor"])}


def _metrics_of_1(metrics: Raw) -> Raw:
    search = metrics.get("operands")
    if search is None:
        return metrics
    operands = [{**row, "edge": _edge(row["edge"])} for row in search["operands"]]
    return {**metrics, "operands": {**search, "operands": operands}}


def _edge(written: Any) -> str | None:
    """An edge as it is spelled now; version 1 wrote it as text in the plan and as a record elsewhere."""
    return f"{written['node']}:{written['index']}" if isinstance(written, dict) else written


# Schema version -> what makes the next one of it.
UPGRADES: Mapping[int, Upgrade] = {1: from_version_1}
