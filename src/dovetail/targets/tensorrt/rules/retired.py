"""Codes of earlier versions: one code stood for everything that the builder made of an attention block."""

from __future__ import annotations

from dovetail.rules.rule import RetiredCode

RETIRED = (
    RetiredCode(
        "TRT",
        "findings about what the TensorRT builder made of an attention block have the codes Q821 and Q822",
        ((r"^attention is not one kernel", "Q821"), (r"^no layer of the list", "Q822")),
    ),
)
