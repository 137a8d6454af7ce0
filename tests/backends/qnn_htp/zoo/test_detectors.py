"""Complete RT-DETRv2 and RF-DETR: backbone, query selection by TopK, deformable decoder, boxes and classes."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")
torch = pytest.importorskip("torch", reason="needs the package torch")
transformers = pytest.importorskip("transformers", reason="needs the package transformers")

from torch import Tensor, nn  # noqa: E402

from dovetail.finding import Status  # noqa: E402
from dovetail.report.result import Result  # noqa: E402
from dovetail.storage import Reason  # noqa: E402
from tests.backends.qnn_htp.zoo.fitting import (  # noqa: E402
    Outputs,
    assert_as_planned,
    export,
    fitted,
    images,
    shared_exports,
)

FIELDS = ("logits", "pred_boxes")
# So wide that the outermost anchors are outside the valid area of the image, as in an image of 640 x 640.
RT_SHAPE = (1, 3, 64, 416)
RF_SHAPE = (1, 3, 112, 112)


def rt_detr() -> nn.Module:
    """Three levels, 30 of 546 proposals, two decoder layers."""
    backbone = transformers.RTDetrResNetConfig(
        embedding_size=16,
        hidden_sizes=[16, 32, 48, 64],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )
    config = transformers.RTDetrV2Config(
        backbone_config=backbone,
        d_model=64,
        encoder_hidden_dim=64,
        encoder_in_channels=[32, 48, 64],
        encoder_ffn_dim=128,
        encoder_attention_heads=4,
        decoder_in_channels=[64, 64, 64],
        decoder_ffn_dim=128,
        decoder_attention_heads=4,
        decoder_layers=2,
        num_queries=30,
        num_labels=8,
        anchor_image_size=list(RT_SHAPE[2:]),
    )
    model = Outputs(transformers.RTDetrV2ForObjectDetection(config), FIELDS)
    set_batch_norm_statistics(model, torch.from_numpy(images(RT_SHAPE)["x"]))
    return model


def rf_detr() -> nn.Module:
    """Four windows of 16 tokens with a class token each, two of four layers global, 20 of 64 proposals."""
    backbone = transformers.RfDetrDinov2Config(
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=2,
        image_size=RF_SHAPE[2],
        patch_size=14,
        num_windows=2,
        out_indices=[2, 4],
        use_mask_token=False,
    )
    config = transformers.RfDetrConfig(
        backbone_config=backbone,
        d_model=64,
        decoder_layers=2,
        decoder_ffn_dim=128,
        decoder_self_attention_heads=4,
        decoder_cross_attention_heads=4,
        num_queries=20,
        num_labels=8,
        c2f_num_blocks=1,
        decoder_n_points=2,
    )
    model = Outputs(transformers.RfDetrForObjectDetection(config), FIELDS)
    # Weights of the magnitude of trained ones: otherwise all proposals score the same, and the selection is random.
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                layer.weight.normal_(0, layer.weight[0].numel() ** -0.5)
    return model


def set_batch_norm_statistics(model: nn.Module, batch: Tensor) -> None:
    """Give batch normalization the statistics that training would: without them the features vanish."""

    def observe(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        layer.running_mean.copy_(inputs[0].mean((0, 2, 3)))
        layer.running_var.copy_(inputs[0].var((0, 2, 3)) + 1e-3)

    layers = [layer for layer in model.eval().modules() if hasattr(layer, "running_mean")]
    hooks = [layer.register_forward_pre_hook(observe) for layer in layers]
    with torch.no_grad():
        for layer in layers:
            layer.weight.copy_(1 + 0.1 * torch.randn(layer.weight.shape))
            layer.bias.copy_(0.1 * torch.randn(layer.bias.shape))
        model(batch)
    for hook in hooks:
        hook.remove()


SHAPES = {"RT-DETRv2": RT_SHAPE, "RF-DETR": RF_SHAPE}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, tuple[int, ...]]]:
    return {name: (path, SHAPES[name]) for name, path in shared_detectors(tmp_path_factory).items()}


def shared_detectors(factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The files of both networks."""
    return shared_exports(factory, list(SHAPES), lambda f: {name: path for name, (path, _) in export_both(f).items()})


def export_both(folder: Path) -> dict[str, tuple[Path, tuple[int, ...]]]:
    """Export both networks, each with the exporter that supports it; return the files and input shapes."""
    torch.manual_seed(0)
    return {
        "RT-DETRv2": (export(rt_detr(), RT_SHAPE, folder / "rt_detr.onnx", dynamo=False), RT_SHAPE),
        "RF-DETR": (export(rf_detr(), RF_SHAPE, folder / "rf_detr.onnx"), RF_SHAPE),
    }


def assert_right(result: Result, precision: str) -> None:
    assert_as_planned(result)
    numerics = result.verdicts["numerics"]
    assert numerics.status is Status.PASS, numerics.reason
    agreement = result.metrics.sqnr_db.target_vs_simulation
    assert agreement is not None
    if precision == "w8a16":
        assert min(value for value in agreement.values() if value is not None) >= 45
    kept = {
        row.original_name
        for row in result.plan
        if str(row.dtype).startswith("float") and row.why is not Reason.INTERIOR
    }
    assert len(kept) == 1  # the values output of TopK, which has no consumer


@pytest.mark.parametrize("name", ["RT-DETRv2", "RF-DETR"])
def test_detectors_run_as_planned(name: str, exported: dict[str, tuple[Path, tuple[int, ...]]], tmp_path: Path) -> None:
    """On a phone chip; w8a8 on the same architecture is tested below and in python -m bench.htp detectors."""
    path, shape = exported[name]
    assert_right(fitted(path, shape, tmp_path / "run", "qnn-htp:sm8550", "w8a16"), "w8a16")


@pytest.mark.parametrize("precision", ["w8a16", "w8a8"])
@pytest.mark.parametrize("name", ["RT-DETRv2", "RF-DETR"])
def test_detectors_run_on_the_automotive_chip(
    name: str, precision: str, exported: dict[str, tuple[Path, tuple[int, ...]]], tmp_path: Path
) -> None:
    path, shape = exported[name]
    option = {"vtcm_mb": "8", "optimization": "3"}
    result = fitted(path, shape, tmp_path / "run", "qnn-htp:soc52", precision, option=option, baselines="none")
    assert_right(result, precision)
    assert result.metrics.latency_estimate_us["fitted"].mid_us > 0
