"""Q7 on operators that HTP has no kernel for in the way in which the converter lowers them."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail.finding import Finding
from dovetail.model.edit import constant_of, shape_of
from dovetail.model.place import at_node, named
from dovetail.rules.check_input import CheckInput
from dovetail.rules.rule import rule
from dovetail.targets.qairt.coloring import Domain
from dovetail.targets.qairt.facts import fact
from dovetail.targets.qairt.mixed_matmul import mixed_matmuls
from dovetail.targets.qairt.roles import BIAS_ADD, added_bias
from dovetail.targets.qairt.rules.subject import (
    converted_graph,
    given_or_planned,
    qairt_facts,
    severity_of,
    with_facts,
)
from dovetail.targets.qairt.sdk import Answer, Subject

_LINEAR_RANK = 3


@rule("Q717")
@with_facts(Subject.FLOAT_BY_UINT8, Subject.FLOAT_BY_INT8)
def float16_by_8_bit_matmul(subject: CheckInput) -> Iterator[Finding]:
    """A MatMul of two activations has one in float16 and the other one in 8 bit.

    ## What it finds
    MatMuls whose operands are both activations, of which one is predicted to be float16 and the other one uint8, or
    int8 before QAIRT 2.44: with the file that is checked (`check --encodings`), or that `fit` writes.

    ## Why it matters
    HTP has no such kernel. The converter accepts it, and the context binary generator rejects the MatMul.

    ## How to fix it
    Give both operands the same precision: both float16 (leave both out), or both with an entry.

    ## Seen on
    {facts}
    """
    conversion = given_or_planned(subject)
    if conversion is None or not conversion.whole:
        return
    for mixed in mixed_matmuls(conversion.model, conversion.predicted, conversion.facts.sdk):
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
    Linear layers of the graph that is converted which are a MatMul and an Add, and are not in float. With `check
    --encodings` that is your own graph; a layer is predicted to be in float if one of its tensors is. The rewrites for
    HTP, which `fit` applies, make a Gemm with a bias of both; with `--option keep_graph=1` they do not run.

    ## Why it matters
    The context binary generator of QAIRT 2.41 fails at these Adds, and every layer that is kept in float moves the
    failure to others. The MatMul and the Add also take longer than one FullyConnected.

    ## How to fix it
    Convert what `dovetail fit --encodings FILE` writes (without `--option keep_graph=1`), or export the layer as Gemm
    with a bias.

    ## Seen on
    {facts}
    """
    facts, (model, of_node) = qairt_facts(subject), converted_graph(subject)
    known = fact(Subject.RANK_3_ADD, facts.sdk)
    for node in model.graph:
        weight = node.inputs[1] if node.op_type == "MatMul" else None
        shape = shape_of(node.inputs[0]) if weight is not None else None
        if constant_of(weight) is None or shape is None or len(shape) < _LINEAR_RANK:
            continue
        if added_bias(node.outputs[0]) is None or of_node.get(str(node.name)) is Domain.FLOAT:
            continue
        if known.answer is Answer.YES:
            continue
        message = (
            f"{named(node)} on {list(shape)} is followed by a separate {BIAS_ADD}: QAIRT {facts.sdk_text} compiles it "
            f"in integers: {known.answer}. {known.text} ({known.known_from})"
        )
        fix = "convert what `dovetail fit` writes without --option keep_graph=1: a Gemm with a bias in place of both"
        yield Finding("Q721", at_node(node), message, severity_of(known.answer), fix=fix)
