"""Retired codes: earlier versions had one code for all messages of the HTP compiler."""

from __future__ import annotations

from dovetail.rules.rule import RetiredCode

RETIRED = (
    RetiredCode(
        "qnn-htp",
        "messages of the HTP compiler have the codes Q701 to Q704 and Q801 to Q809",
        (
            (r"was made by QAIRT", "Q701"),
            (r"could not be read from it$", "Q702"),
            (r"^no DLC was made", "Q703"),
            (r"^it was compiled for HTP", "Q704"),
            (r"is refused by the compiler", "Q801"),
            (r"^the compiler's log names no refused node", "Q807"),
            (r"^the compiler took it and said: .*scale too large for requant", "Q809"),
            (r"^the compiler took it and said", "Q808"),
        ),
    ),
)
