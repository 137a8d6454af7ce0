"""Upgrading results of older schema versions to the next one, without losing information.

Decoded documents are upgraded key by key, because the record types of older versions no longer exist.
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
    """Upgrade to version 2: places as records, edges as ``node:index``, read-back rows by the caller's names, a code
    per kind of compiler message, and one list of decisions in place of two kinds of search."""
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
    """Upgrade to version 3: the conditions of a verdict by name, and a placement with ``delegated`` operations."""
    verdicts = {name: _verdict_of_2(verdict) for name, verdict in raw["verdicts"].items()}
    metrics = {**raw["metrics"], "placement": _placement_of_2(raw["metrics"].get("placement"))}
    return {**raw, "verdicts": verdicts, "metrics": metrics}


def from_version_3(raw: Raw) -> Raw:
    """Upgrade to version 4: the operators of the graph and histograms, which version 3 did not record."""
    return {**raw, "operators": [], "metrics": {**raw["metrics"], "ranges": []}}


def _verdict_of_2(verdict: Raw) -> Raw:
    kept = {key: value for key, value in verdict.items() if key != "threshold"}
    return {**kept, "passes_when": {"condition": verdict["threshold"]} if verdict["threshold"] else {}}


def _placement_of_2(placement: Raw | None) -> Raw | None:
    if placement is None:
        return None
    ops = [{"node": op["node"], "operation": op["operation"], "reason": op["why"]} for op in placement["outside"]]
    return {"partitions": placement["parts"], "delegated": placement["inside"], "undelegated": ops}


def _finding_of_1(row: Raw) -> Raw:
    """The place of version 1 was a text that does not say what it names, so it stays a text."""
    kept = {key: value for key, value in row.items() if key != "where"}
    place = {"kind": "text", "name": row["where"]}
    return {**kept, "code": _code_of_1(row["code"], row["message"]), "place": place}


def _code_of_1(code: str, message: str) -> str:
    """Version 1 had one code for all messages of a compiler."""
    patterns = [pair for retired in retired_codes() if retired.code == code for pair in retired.now]
    return next((now for pattern, now in patterns if re.search(pattern, message)), code)


def _read_back_of_1(row: Raw, names: Mapping[str, str]) -> Raw:
    """``tensor`` was the name in the planned or emitted graph; the plan of the same result has the caller's."""
    edge = _edge(row["edge"])
    return {**row, "edge": edge, "emitted": row["tensor"], "tensor": names.get(edge or row["tensor"], row["tensor"])}


def _precision_of_1(metrics: Raw) -> Raw | None:
    choices = metrics.get("choices")
    if choices is None or not choices["candidates"]:
        return None
    names = {"simulation_sqnr_db": "simulation_sqnr_db", "target_sqnr_db": "target_sqnr_db", "median_us": "latency_us"}
    names |= {"time_ratio": "time_ratio"}
    rows = [
        _alternative(row["precision"], {new: row[old] for old, new in names.items()} | row["figures"], row["failure"])
        for row in choices["candidates"]
    ]
    outcome = {"taken": choices["precision"], "rule": choices["rule"], "reason": choices["reason"]}
    return {**_decision("precision", "", rows, choices["samples"], **outcome), "place": {"kind": "model"}}


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
    decision = {"knob": knob, "place": place, "taken": taken, "alternatives": rows, "samples": samples}
    return {**decision, "rule": rule, "reason": reason or "as recorded in schema version 1"}


def _edge(written: Any) -> str | None:
    """An edge as it is written now; version 1 wrote it as text in the plan and as a record elsewhere."""
    return f"{written['node']}:{written['index']}" if isinstance(written, dict) else written


# Schema version -> the function that upgrades it to the next one.
UPGRADES: Mapping[int, Upgrade] = {1: from_version_1, 2: from_version_2, 3: from_version_3}
