"""The vendor's estimates of a ViT-B with random weights and int4 weights; it is compiled for SoC 52, not emulated."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dovetail.backend import CompileResult, Outcome
from dovetail.calibrate.collect import collect
from dovetail.calibrate.data import input_specs
from dovetail.calibrate.sources import open_data
from dovetail.float_graph import cut, rewrite
from dovetail.model.read import read
from dovetail.passes.normalize import normalize
from dovetail.plan.make import make_plan, observed
from dovetail.plan.request import Request
from dovetail.plan.requested_weights import RequestedWeights
from dovetail.targets import open_target

IMAGE = (1, 3, 224, 224)


def export_vit_b(path: Path) -> Path:
    """Export Hugging Face's ViT-B with random weights; needs torch and transformers."""
    import torch
    from tests.networks.torch_export import Outputs, export
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    config = ViTConfig(num_labels=1000)
    config._attn_implementation = "eager"
    export(Outputs(ViTForImageClassification(config), ["logits"]), IMAGE, path, dynamo=False)
    return path


def compiled(path: Path, target_name: str, precision_name: str, folder: Path) -> tuple[CompileResult, int]:
    """Plan, emit and compile; also the number of tensors that were not read back as planned."""
    target = open_target(target_name, {"vtcm_mb": "8"})
    precision, original = target.table.precisions[precision_name], read(path)
    model, _ = rewrite(cut(normalize(original)[0], target).head, target, original, RequestedWeights(precision))
    samples = {str(original.graph.inputs[0].name): np.random.default_rng(0).standard_normal((1, *IMAGE), np.float32)}
    folder.mkdir(exist_ok=True)
    names, data = observed(model, target.table), open_data(samples, input_specs(model))
    stats = collect(model, names, data, workdir=folder, histograms=False)
    plan = make_plan(model, target.table, stats, Request(precision))
    result = target.backend.compile(target.backend.emit(model, plan, folder), folder)
    rows = target.backend.read_back(result, plan).tensors
    return result, sum(row.outcome in (Outcome.CHANGED, Outcome.NOT_FOUND) for row in rows)
