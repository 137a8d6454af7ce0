"""Results of older schema versions, brought to the next one: nothing that they say is lost.

A document is upgraded as it was decoded, key by key, because the records of its time are gone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dovetail.catalog import retired_codes
from dovetail.document import Upgrade
from dovetail.plan.rows import row_from_1

Raw = dict[str, Any]


def from_version_1(raw: Raw) -> Raw:
    """Places as records, edges as ``node:index``, read-back rows in the caller's names, a code per kind of message, and
    one list of decisions in place of two kinds of search."""
    names = {_edge(row["edge"]) or row["tensor"]: row["original_name"] for row in raw["plan"]}
    decisions = (_precision_of_1(raw["metrics"]), *_merges_of_1(raw["metrics"]), *_operands_of_1(raw["metrics"]))
    return {
        **raw,
        "plan": [row_from_1(row) for row in raw["plan"]],
        "decisions": [decision for decision in decisions if decision is not None],
        "findings": [_finding_of_1(row) for row in raw["findings"]],
        "read_back": [_read_back_of_1(row, names) for row in raw["read_back"]],
        "metrics": {key: value for key, value in raw["metrics"].items() if key not in ("operands", "choices")},
    }


def from_version_2(raw: Raw) -> Raw:
    """The conditions of a verdict by name, and the placement in the words of delegates."""
    verdicts = {name: _verdict_of_2(verdict) for name, verdict in raw["verdicts"].items()}
    metrics = {**raw["metrics"], "placement": _placement_of_2(raw["metrics"].get("placement"))}
    return {**raw, "verdicts": verdicts, "metrics": metrics}


def _verdict_of_2(verdict: Raw) -> Raw:
    kept = {key: value for key, value in verdict.items() if key != "threshold"}
    return {**kept, "passes_when": {"condition": verdict["threshold"]} if verdict["threshold"] else {}}


def _placement_of_2(placement: Raw | None) -> Raw | None:
    if placement is None:
        return None
    ops = [{"node": op["node"], "operation": op["operation"], "reason": op["why"]} for op in placement["outside"]]
    return {"partitions": placement["parts"], "delegated": placement["inside"], "undelegated": ops}


def _finding_of_1(row: Raw) -> Raw:
    """The place of version 1 was a text; what it names is not said, so it stays one."""
    kept = {key: value for key, value in row.items() if key != "where"}
    place = {"kind": "text", "name": row["where"]}
    return {**kept, "code": _code_of_1(row["code"], row["message"]), "place": place}


def _code_of_1(code: str, message: str) -> str:
    """Version 1 had one code for all that a compiler said."""
    known = [pair for one in retired_codes() if one.code == code for pair in one.now]
    return next((now for pattern, now in known if re.search(pattern, message)), code)


def _read_back_of_1(row: Raw, names: Mapping[str, str]) -> Raw:
    """``tensor`` was the name in the planned or emitted graph; the plan of the same result has the caller's."""
    edge = _edge(row["edge"])
    return {**row, "edge": edge, "emitted": row["tensor"], "tensor": names.get(edge or row["tensor"], row["tensor"])}


def _precision_of_1(metrics: Raw) -> Raw | None:
    choices = metrics.get("choices")
    if choices is None or not choices["candidates"]:
        return None
    named = {"simulation_sqnr_db": "simulation_sqnr_db", "target_sqnr_db": "target_sqnr_db", "median_us": "latency_us"}
    named |= {"time_ratio": "time_ratio"}
    rows = [
        _alternative(row["precision"], {new: row[old] for old, new in named.items()} | row["figures"], row["failure"])
        for row in choices["candidates"]
    ]
    said = {"taken": choices["precision"], "rule": choices["rule"], "reason": choices["reason"]}
    return {**_decision("precision", "", rows, choices["samples"], **said), "place": {"kind": "model"}}


def _merges_of_1(metrics: Raw) -> list[Raw]:
    choices = metrics.get("choices") or {"merges": [], "samples": 0}
    return [
        _decision(
            "merges",
            row["node"],
            [
                _alternative("one range for all inputs", {"simulation_sqnr_db": row["shared_sqnr_db"]}),
                _alternative("float", {"simulation_sqnr_db": row["float_sqnr_db"]}),
            ],
            choices["samples"],
            taken="float" if row["in_float"] else "one range for all inputs",
        )
        for row in choices["merges"]
    ]


def _operands_of_1(metrics: Raw) -> list[Raw]:
    search = metrics.get("operands") or {"operands": [], "samples": 0}
    return [
        _decision(
            "operands",
            str(_edge(row["edge"])),
            [
                _alternative(row["wide"], {"sqnr_db": row["wide_sqnr_db"]}),
                _alternative(row["narrow"], {"sqnr_db": row["narrow_sqnr_db"], "saved_us": row["saved_us"]}),
            ],
            search["samples"],
            taken=row["chosen"],
        )
        for row in search["operands"]
    ]


def _alternative(label: str, figures: Raw, failure: str = "") -> Raw:
    return {"label": label, "figures": {k: v for k, v in figures.items() if v is not None}, "failure": failure}


def _decision(
    knob: str, where: str, rows: list[Raw], samples: int, *, taken: str, rule: str = "", reason: str = ""
) -> Raw:
    place = {"kind": "text", "name": where}
    named = {"knob": knob, "place": place, "taken": taken, "alternatives": rows, "samples": samples}
    return {**named, "rule": rule, "reason": reason or "as recorded in schema version 1"}


def _edge(written: Any) -> str | None:
    """An edge as it is spelled now; version 1 wrote it as text in the plan and as a record elsewhere."""
    return f"{written['node']}:{written['index']}" if isinstance(written, dict) else written


# Schema version -> what makes the next one of it.
UPGRADES: Mapping[int, Upgrade] = {1: from_version_1, 2: from_version_2}
