"""Which opsets and operators are supported: those that the installed onnx and ONNX Runtime both support."""

from __future__ import annotations

from functools import cache

import onnx
import onnx_ir as ir

from dovetail.errors import InputError
from dovetail.model.contributed import is_early
from dovetail.model.opset import OLDEST_OPSET

_CONTRIBUTED = "com.microsoft"
_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", _CONTRIBUTED)


def check_opset(model: ir.Model) -> None:
    """Refuse an opset that is too old to convert or too new to run; also write the domain ``ai.onnx`` as ``""``."""
    for node in model.graph.all_nodes():
        node.domain = "" if node.domain == "ai.onnx" else node.domain
    imports = model.graph.opset_imports
    if "ai.onnx" in imports:
        imports[""] = imports.pop("ai.onnx")
    version = imports.setdefault("", newest_opset())
    if not OLDEST_OPSET <= version <= newest_opset():
        raise InputError(
            f"the model uses opset {version}, which is not supported; export it with an opset from {OLDEST_OPSET} to "
            f"{newest_opset()}"
        )


def check_ops(model: ir.Model) -> None:
    """Refuse an operator that neither ONNX, ONNX Runtime nor the model's own functions define."""
    bodies = [model.graph, *(function.graph for function in model.functions.values())]
    for body in bodies:
        for node in body.all_nodes():
            if node.op_identifier() not in model.functions and not _is_supported(node, model.graph.opset_imports):
                raise InputError(
                    f"node {node.name or str(node.outputs[0].name)!r} uses the operator "
                    f"{(node.domain + '.' if node.domain else '') + node.op_type!r}, "
                    "which ONNX Runtime does not support"
                )


@cache
def newest_opset() -> int:
    """The newest opset that both onnx and ONNX Runtime support."""
    version = onnx.defs.onnx_opset_version()
    while not _runtime_supports(version):
        version -= 1
    return version


def _runtime_supports(opset: int) -> bool:
    import onnxruntime
    from onnxruntime.capi.onnxruntime_pybind11_state import Fail

    text = f'<ir_version: 10, opset_import: ["": {opset}]> g (float[1] x) => (float[1] y) {{ y = Identity(x) }}'
    try:
        onnxruntime.InferenceSession(
            onnx.parser.parse_model(text).SerializeToString(), providers=["CPUExecutionProvider"]
        )
    except Fail:
        return False
    return True


def _is_supported(node: ir.Node, imports: dict[str, int]) -> bool:
    if node.domain not in _DOMAINS:
        return False
    if node.domain == _CONTRIBUTED:
        return node.op_type in _contributed_ops()
    if is_early(node, imports):
        return True
    return onnx.defs.has(node.op_type, imports.get(node.domain, newest_opset()), node.domain)


@cache
def _contributed_ops() -> frozenset[str]:
    from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

    return frozenset(schema.name for schema in get_all_operator_schema() if schema.domain == _CONTRIBUTED)
