"""The report of a sweep: how many graphs pass, and the groups of those that do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from dovetail.finding import Status
from dovetail.sweep.group import FailureGroup, grouped
from dovetail.sweep.records import GraphRow, PatternRow, SweepSettings


@dataclass(frozen=True, slots=True)
class SweepReport:
    """The figures of a sweep.

    ``failures``: graphs by kind of failure; a graph can have several. ``verdicts``: graphs by verdict and status.
    ``wrong_and_passed``: indices of graphs with a wrong output although ``numerics`` passed, which must not happen.
    ``with_workaround``: graphs that pass because an operator that was wrong was planned otherwise. ``by_kind``: per
    kind of block, how many graphs with it pass, of how many.
    """

    settings: SweepSettings
    graphs: int
    passed: int
    failures: Mapping[str, int]
    verdicts: Mapping[str, Mapping[str, int]]
    wrong_and_passed: tuple[int, ...]
    with_workaround: tuple[int, ...]
    groups: tuple[FailureGroup, ...]
    not_shrunk: int
    cpu_s: float
    by_kind: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def make_report(settings: SweepSettings, graphs: Mapping[int, GraphRow], patterns: list[PatternRow]) -> SweepReport:
    """Count the rows of a sweep."""
    rows = list(graphs.values())
    outcomes = [row.outcome for row in rows]
    verdicts: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        for name, status in outcome.verdicts.items():
            verdicts.setdefault(name, Counter())[status] += 1
    found = Counter(str(kind) for o in outcomes for kind in {failure.kind for failure in o.failures})
    kinds = sorted({kind for row in rows for kind in row.kinds})
    return SweepReport(
        settings,
        graphs=len(rows),
        passed=sum(not outcome.failures for outcome in outcomes),
        failures=dict(sorted(found.items())),
        verdicts={name: dict(sorted(counts.items())) for name, counts in verdicts.items()},
        wrong_and_passed=tuple(row.index for row in rows if row.outcome.is_wrong_and_passed),
        with_workaround=tuple(row.index for row in rows if row.outcome.workarounds and not row.outcome.failures),
        groups=tuple(grouped(patterns)),
        not_shrunk=sum(len(outcome.failures) for outcome in outcomes) - len(patterns),
        cpu_s=round(sum(outcome.cpu_s for outcome in outcomes), 1),
        by_kind={kind: _passed(rows, kind) for kind in kinds},
    )


def _passed(rows: list[GraphRow], kind: str) -> tuple[int, int]:
    """How many graphs with a kind of block pass, of how many."""
    having = [row for row in rows if kind in row.kinds]
    return sum(not row.outcome.failures for row in having), len(having)


def as_markdown(report: SweepReport) -> str:
    """The report as a page."""
    settings = report.settings
    share = 100 * report.passed / report.graphs if report.graphs else 0.0
    mode = ", first builds only" if settings.build_only else ""
    options = "".join(f", {key}={value}" for key, value in settings.option.items())
    lines = [
        f"# Sweep of {settings.target}, {settings.precision}, seed {settings.seed}{options}{mode}",
        "",
        f"{report.passed} of {report.graphs} graphs pass ({share:.1f} %), in {report.cpu_s:.0f} CPU seconds. "
        f"Wrong while `numerics` passes: {_wrong_and_passed(report)}. "
        f"Passed with a workaround that was found by measuring: {len(report.with_workaround)}"
        f"{_listed(report.with_workaround)}.",
        "",
        *_verdict_table(report),
        "",
        f"Failures: {', '.join(f'{count} {kind}' for kind, count in report.failures.items()) or 'none'}"
        + (f"; {report.not_shrunk} are not shrunk yet" if report.not_shrunk > 0 else "")
        + ".",
        "",
    ]
    for group in report.groups:
        lines += _group(group)
    failing = [f"{kind} {passed}/{total}" for kind, (passed, total) in report.by_kind.items() if passed < total]
    if failing:
        lines += [
            "## Blocks in failing graphs",
            "",
            f"Graphs that pass, of those with the block: {', '.join(failing)}.",
        ]
    return "\n".join(lines).rstrip() + "\n"


def _wrong_and_passed(report: SweepReport) -> str:
    """How many graphs, of those in which the verdict was checked; without any, the count would say nothing."""
    counts = report.verdicts.get("numerics", {})
    checked = sum(count for status, count in counts.items() if status != Status.NOT_CHECKED)
    if not checked:
        return "not checked"
    return f"{len(report.wrong_and_passed)} of {checked}{_listed(report.wrong_and_passed)}"


def _verdict_table(report: SweepReport) -> list[str]:
    statuses = sorted({status for counts in report.verdicts.values() for status in counts})
    lines = [f"| verdict | {' | '.join(statuses)} |", "|---" * (len(statuses) + 1) + "|"]
    for name, counts in report.verdicts.items():
        lines.append(f"| {name} | {' | '.join(str(counts.get(status, 0)) for status in statuses)} |")
    return lines


def _group(group: FailureGroup) -> list[str]:
    lines = [f"## {group.kind}: `{group.pattern}`", ""]
    if group.sizes:
        lines.append(f"- sizes: {group.sizes}")
    lines.append(f"- {group.cause}")
    if group.codes:
        lines.append(f"- findings: {', '.join(group.codes)}")
    count = len(group.members)
    lines.append(f"- {count} graph{'s' * (count != 1)}{_listed(tuple(member.index for member in group.members))}")
    smallest = group.smallest
    state = "" if smallest.is_minimal else " (may not be the smallest)" if smallest.is_shrunk else " (the whole graph)"
    return [*lines, f"- file: `{smallest.file}`{state}", ""]


def _listed(indices: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, indices[:12]))
    return f" ({shown}{', ...' if len(indices) > 12 else ''})" if indices else ""
