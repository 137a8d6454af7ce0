"""Q7 on operators that HTP has no kernel for in the way in which the converter lowers them."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.finding import Finding, Severity
from dovetail.model.edit import constant_of, shape_of
from dovetail.model.place import at_node, named
from dovetail.rules.check_input import CheckInput
from dovetail.rules.rule import rule
from dovetail.targets.qairt.coloring import boundaries, islands
from dovetail.targets.qairt.facts import fact
from dovetail.targets.qairt.mixed_matmul import mixed_matmuls
from dovetail.targets.qairt.roles import BIAS_ADD, added_bias
from dovetail.targets.qairt.rules.subject import conversion_of, qairt_facts, severity_of, with_facts
from dovetail.targets.qairt.sdk import Answer, Subject

_LINEAR_RANK = 3
# Islands from which on they are not connected.
_SEVERAL = 2


@rule("Q717")
@with_facts(Subject.FLOAT_BY_UINT8, Subject.FLOAT_BY_INT8)
def float16_by_8_bit_matmul(subject: CheckInput) -> Iterator[Finding]:
    """A MatMul of two activations has one in float16 and the other one in 8 bit.

    ## What it finds
    With `check --encodings`: MatMuls whose operands are both activations, of which one is predicted to be float16 and
    the other one uint8, or int8 before QAIRT 2.44.

    ## Why it matters
    HTP has no such kernel. The converter accepts it, and the context binary generator rejects the MatMul.

    ## How to fix it
    Give both operands the same precision: both float16 (leave both out), or both with an entry.

    ## Seen on
    {facts}
    """
    conversion = conversion_of(subject)
    if conversion is None:
        return
    for mixed in mixed_matmuls(conversion.model, conversion.predicted(), conversion.facts.sdk):
        known, narrow = mixed.fact, mixed.narrow_operand
        message = (
            f"{named(mixed.node)} multiplies {mixed.float_operand.tensor!r} (float16) by {narrow.tensor!r} "
            f"({narrow.dtype}): QAIRT {conversion.facts.sdk_text} supports it: {known.answer}. {known.text} "
            f"({known.known_from})"
        )
        fix = "give both operands the same precision: leave out both entries, or give both one"
        yield Finding("Q717", at_node(mixed.node), message, severity_of(known.answer), fix=fix)


@rule("Q721")
@with_facts(Subject.RANK_3_ADD)
def rank_3_matmul_with_separate_add(subject: CheckInput) -> Iterator[Finding]:
    """A MatMul of rank 3 or more with a constant weight is followed by a separate Add of its bias.

    ## What it finds
    Linear layers of the graph that is converted which are a MatMul and an Add. The rewrites for HTP make a Gemm with
    a bias of both; with `--option keep_graph=1` they do not run.

    ## Why it matters
    The context binary generator of QAIRT 2.41 fails at these Adds, and every layer that is kept in float moves the
    failure to others. The MatMul and the Add also take longer than one FullyConnected.

    ## How to fix it
    Let Dovetail rewrite the graph (without `--option keep_graph=1`), or export the layer as Gemm with a bias.

    ## Seen on
    {facts}
    """
    facts = qairt_facts(subject)
    known = fact(Subject.RANK_3_ADD, facts.sdk)
    for node in subject.model.graph:
        weight = node.inputs[1] if node.op_type == "MatMul" else None
        shape = shape_of(node.inputs[0]) if weight is not None else None
        if constant_of(weight) is None or shape is None or len(shape) < _LINEAR_RANK:
            continue
        if added_bias(node.outputs[0]) is None or known.answer is Answer.YES:
            continue
        message = (
            f"{named(node)} on {list(shape)} is followed by a separate {BIAS_ADD}: QAIRT {facts.sdk_text} compiles it "
            f"in integers: {known.answer}. {known.text} ({known.known_from})"
        )
        fix = "let Dovetail make a Gemm with a bias of both (without --option keep_graph=1)"
        yield Finding("Q721", at_node(node), message, severity_of(known.answer), fix=fix)


@rule("Q724")
@with_facts(Subject.ISLANDS_COMPILE)
def float_operators_not_connected(subject: CheckInput) -> Iterator[Finding]:
    """The float operators of a plan are several islands between integer operators.

    ## What it finds
    Plans with more than one group of connected operators in float16. The finding has the number of islands, and of
    tensors between float and integer operators.

    ## Why it matters
    Every boundary can hand on a memory layout that the next operator has no kernel for. In the first public report,
    keeping layers 3, 6 and 9 in float moved the failure to layers 0, 2, 7 and 8, and keeping all attention in float to
    129 operators; float fallback and exclusions did not end it. Every boundary also costs a conversion.

    ## How to fix it
    Keep one connected part of the model in float, such as the whole decoder (`--keep 'decoder*=fp16'`), or
    convert parts of one precision each (`--option strategy=split`).

    ## Seen on
    {facts}
    """
    if subject.plan is None or subject.encodings is not None:
        return
    facts, groups = qairt_facts(subject), islands(subject.model, subject.plan)
    if len(groups) < _SEVERAL:
        return
    known = fact(Subject.ISLANDS_COMPILE, facts.sdk)
    nodes = {str(node.name): node for node in subject.model.graph}
    crossing = boundaries(subject.model, subject.plan)
    message = (
        f"{sum(map(len, groups))} float operators are {len(groups)} islands, with {crossing} tensors between float and "
        f"integer operators: QAIRT {facts.sdk_text} compiles every mixture: {known.answer}. {known.text} "
        f"({known.known_from})"
    )
    fix = "keep one connected part of the model in float, or convert parts of one precision (--option strategy=split)"
    numbers = {"islands": float(len(groups)), "boundaries": float(crossing)}
    yield Finding("Q724", at_node(nodes[groups[0][0]]), message, Severity.WARNING, numbers, fix)
