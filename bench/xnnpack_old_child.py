"""The part of ``bench.xnnpack old`` that runs with executorch 1.3.1; it imports nothing of this project.

``lower MODEL.pt2 SAMPLES.pt OUT.pte`` with the stock quantizer, or ``load PROGRAM.pte``. The last line printed is JSON.
Programs are loaded but not run: this runtime cannot take tensors of torch 2.13, whose memory layout differs from that
of the torch version it was built with ("Input 0 for method forward should be contiguous", although it is).
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path


def lower(model: str, samples: str, program: str) -> None:
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from executorch.exir import to_edge_transform_and_lower
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    inputs = torch.load(samples)
    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True))
    prepared = prepare_pt2e(torch.export.load(model).module(), quantizer)
    for sample in inputs:
        prepared(sample)
    exported = torch.export.export(convert_pt2e(prepared), (inputs[0],), strict=False)
    edge = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()])
    Path(program).write_bytes(edge.to_executorch().buffer)


def load(program: str) -> None:
    from executorch.runtime import Runtime

    Runtime.get().load_program(program).load_method("forward")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    error = ""
    try:
        {"lower": lower, "load": load}[sys.argv[1]](*sys.argv[2:])
    except Exception as raised:  # noqa: BLE001 - any error of the vendor's code is the result to report
        error = f"{type(raised).__name__}: {' '.join(str(raised).split())[:200]}"
    print(json.dumps({"error": error}))
