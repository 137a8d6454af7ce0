"""``qairt:SDK/CHIP``: files and commands for Qualcomm's own converters, and what they are predicted to make of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from dovetail.backend import Artifact, Backend, CompileResult, ReadBack, Runner
from dovetail.op_support import OpTable
from dovetail.storage import Plan
from dovetail.target import Family, Rewrites, Target
from dovetail.targets.htp.rewrites import REWRITES
from dovetail.targets.htp.rules import GRAPH_RULES
from dovetail.targets.htp.table import htp_table
from dovetail.targets.htp.workarounds import needed
from dovetail.targets.htp.workarounds.workaround import limited
from dovetail.targets.qairt.conversion_knob import conversion
from dovetail.targets.qairt.converted import read_converted, read_output
from dovetail.targets.qairt.emit import FOLDER, chosen, emit
from dovetail.targets.qairt.facts import fact
from dovetail.targets.qairt.mixed_matmul import MATMULS
from dovetail.targets.qairt.options import KEYS, SUFFIXES, QairtFacts, read_facts
from dovetail.targets.qairt.rules import RULES as QAIRT_RULES
from dovetail.targets.qairt.sdk import Answer, Subject
from dovetail.targets.qairt.sdk_tools import NET, probe, run_script
from dovetail.targets.qairt.ways import WayName
from dovetail.targets.qnn_htp.read_back import EVIDENCE
from dovetail.trials.knobs.mixed import mixed
from dovetail.trials.knobs.wide_outputs import WIDE_OUTPUTS

RULES = (*GRAPH_RULES, *QAIRT_RULES)
_CANNOT_RUN = "what Qualcomm's converters write runs on a device; `--target qnn-htp` emulates the same plan"
_NO_CONVERTER = "the way qdq has no converter: compile model.onnx with ONNX Runtime's QNN provider (--target qnn-htp)"
_NOTE = (
    "qairt/ways.json ranks the ways to convert this plan, qairt/prediction.json has the predicted precision of every "
    "tensor, qairt/WAY/convert.sh the commands; predictions are not checks"
)
_NO_LATENCY = "`--target qnn-htp:soc52` estimates it for the same plan"
_FLOAT16_DB = 48.0
_WIDE = 16


def open_target(suffix: str, options: Mapping[str, str]) -> Target:
    """Return the target for one SDK version and one chip."""
    facts = read_facts(suffix, options)
    workarounds = needed(facts.sdk)
    passes = (*REWRITES, *(change for workaround in workarounds for change in workaround.passes))
    return Target(
        name=facts.name,
        facts=facts,
        table=_table(facts, limited(htp_table(facts.name, facts.chip), workarounds)),
        backend=_backend(facts),
        rewrites=Rewrites(() if facts.keep_graph else passes),
        rules=RULES,
        knobs=(mixed(WIDE_OUTPUTS), conversion(facts)),
    )


def _table(facts: QairtFacts, table: OpTable) -> OpTable:
    """What HTP supports, as far as an encodings file can say it and the converter's kernels allow it."""
    ops = dict(table.ops)
    if fact(Subject.FLOAT_BY_UINT8, facts.sdk).answer is not Answer.YES:
        ops |= {name: replace(ops[name], narrowest_with_float=_WIDE) for name in MATMULS}
    return replace(table, ops=ops, one_encoding=True)


FAMILY = Family(open_target, SUFFIXES, KEYS, RULES)


def _backend(facts: QairtFacts) -> Backend:
    backend = Backend(
        probe=partial(probe, facts),
        emit=partial(emit, facts),
        compile=partial(_compile, facts, None),
        read_back=_read_back,
        converted=read_output,
        runner=Runner(None, _CANNOT_RUN, notes=(_NOTE,)),
        float16_db=_FLOAT16_DB,
        no_latency=_NO_LATENCY,
    )
    if not facts.keep_graph:
        return backend
    return replace(backend, for_file=lambda path: replace(backend, compile=partial(_compile, facts, path.absolute())))


def _compile(facts: QairtFacts, own_model: Path | None, artifacts: tuple[Artifact, ...], folder: Path) -> CompileResult:
    """Run the script of the chosen way with the installed SDK; ``own_model``: the file that it converts."""
    way = chosen(facts, artifacts[0].path.parent / FOLDER)
    if way is WayName.QDQ:
        return CompileResult(artifacts, error=_NO_CONVERTER, finished=False)
    return run_script(facts, artifacts[0].path.parent / FOLDER / way, artifacts, folder / "convert.log", own_model)


def _read_back(compiled: CompileResult, plan: Plan) -> ReadBack:
    graphs = [artifact.path for artifact in compiled.artifacts if artifact.name == NET]
    if not graphs:
        return ReadBack((), EVIDENCE, unparsed="the converter wrote no *_net.json")
    return read_converted(compiled.artifacts[0].path, graphs, plan)
