"""Q7 on plans and files that the converter cannot get as they are meant, or that it may not compile."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.finding import Finding, Severity
from dovetail.model.place import at_node
from dovetail.rules.check_input import CheckInput
from dovetail.rules.rule import rule
from dovetail.targets.qairt.coloring import boundaries, islands
from dovetail.targets.qairt.facts import fact
from dovetail.targets.qairt.planned import planned_conversion
from dovetail.targets.qairt.rules.subject import converted_graph, qairt_facts, with_facts
from dovetail.targets.qairt.sdk import Subject

# Islands from which on they are not connected.
_SEVERAL = 2


@rule("Q724")
@with_facts(Subject.ISLANDS_COMPILE)
def float_operators_not_connected(subject: CheckInput) -> Iterator[Finding]:
    """The float operators are several islands between integer operators.

    ## What it finds
    More than one group of connected operators in float, with integer operators between them: in a plan, and with `check
    --encodings` as predicted for your own file, where an operator computes in float if one of its tensors does (without
    an entry and with `--float_fallback`, or with a float entry). The finding has the number of islands, and of tensors
    between float and integer operators.

    ## Why it matters
    Every boundary can hand on a memory layout that the next operator has no kernel for. In the first public report,
    keeping layers 3, 6 and 9 in float moved the failure to layers 0, 2, 7 and 8, and keeping all attention in float to
    129 operators; float fallback and exclusions did not end it. Every boundary also costs a conversion.

    ## How to fix it
    Keep one connected part of the model in float, such as the whole decoder (`--keep 'decoder*=fp16'`), or
    convert parts of one precision each (`--option strategy=split`). In your own file, give entries to what lies between
    the islands for no reason, int32 biases first: a layer whose bias has none is an island (Q713).

    ## Seen on
    {facts}
    """
    facts, (model, of_node) = qairt_facts(subject), converted_graph(subject)
    groups = islands(model, of_node)
    if len(groups) < _SEVERAL or not (crossing := boundaries(model, of_node)):
        return
    known = fact(Subject.ISLANDS_COMPILE, facts.sdk)
    nodes = {str(node.name): node for node in model.graph}
    message = (
        f"{sum(map(len, groups))} float operators are {len(groups)} islands, with {crossing} tensors between float and "
        f"integer operators: QAIRT {facts.sdk_text} compiles every mixture: {known.answer}. {known.text} "
        f"({known.known_from})"
    )
    fix = "keep one connected part of the model in float, or convert parts of one precision (--option strategy=split)"
    numbers = {"islands": float(len(groups)), "boundaries": float(crossing)}
    yield Finding("Q724", at_node(nodes[groups[0][0]]), message, Severity.WARNING, numbers, fix)


@rule("Q726")
@with_facts(Subject.SYMMETRIC_OPERAND, Subject.FLOAT_RESULT)
def operand_not_in_its_entry(subject: CheckInput) -> Iterator[Finding]:
    """An operator must read a tensor in another precision than the tensor's entry says.

    ## What it finds
    With `fit`, and with `check --encodings`: inputs that HTP requires in another dtype than the tensor is stored in, as
    a second operand of a MatMul that has 16 bits: before v73 its kernels read 8, from v73 on symmetric ones. Entries of
    your own file are kept as they are, and reported here.

    ## Why it matters
    An encodings file has one entry per tensor, and cannot say how one operator reads it: also not that the direct
    branch of a 16-bit SiLU has a scale of its own, without which HTP computes some sizes wrongly. What the converter
    does there is not known. Without such a file, `fit` plans so that the entries say all of it: the tensor is
    symmetric if a consumer requires that, a tensor between float and integer operators is quantized where it is
    written, and an operator that would need a conversion computes in float. What is left is reported here.

    ## How to fix it
    Quantize the tensor with the bits that the operator reads, symmetrically if it must be, or keep the operator in
    float (`--keep NODE=fp16`).

    ## Seen on
    {facts}
    """
    if subject.plan is None or (subject.raw is not None and subject.encodings is None):
        return
    facts = qairt_facts(subject)
    conversion = planned_conversion(facts, subject.model, subject.plan)
    nodes = {str(node.name): node for node in conversion.model.graph}
    for lost in conversion.export.lost:
        entry = conversion.export.entries.get(lost.tensor)
        has = "has no entry" if entry is None or entry.is_float else f"is {entry.dtype_text} in its entry"
        if lost.scale is not None and entry is not None:
            has = f"has scale {float(entry.scale):.6g} in its entry"
        message = (
            f"{lost.edge} must read {lost.tensor!r} as {lost.read_as}, but the tensor {has}: what the converter of "
            f"QAIRT {facts.sdk_text} makes of it is not known"
        )
        fix = "quantize the tensor with the bits that the operator reads, or keep the operator in float16 (--keep)"
        yield Finding("Q726", at_node(nodes[lost.edge.node]), message, Severity.WARNING, fix=fix)
