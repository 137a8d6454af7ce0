"""Q5: what only running the quantized model, or comparing its data, can find."""

from __future__ import annotations

from dovetail.rules.rule import explanation

LOW_ACCURACY = explanation(
    "Q505",
    "low_accuracy",
    """The quantized model is far from the float model.

    ## What it finds
    After `dovetail fit` and `dovetail repair` have run the quantized model: a float output below 20 dB against float,
    an output of class scores whose top class is the same as in float for less than 95 % of the samples, or a value of
    the metric that gets worse by more than is allowed. Outputs after a TopK are compared on the rows that both
    selected; integer outputs are not judged. It is an error if the verdict `accuracy` fails (by default below 10 dB, or
    a drop of more than 0.05), otherwise a warning. After `dovetail verify --device-outputs` also for the outputs of the
    device, with messages that begin with "on the device:".

    ## Why it matters
    The verdicts `compiled`, `fidelity` and `numerics` compare the target with the plan and with the simulation. They
    pass also if the plan itself is bad. At 20 dB the noise is a tenth of the signal, at 10 dB a third of it, at 0 dB
    the output is noise.

    ## How to fix it
    The terminal lists the tensors that lose most, and the finding has a `--keep` line that keeps them in a wider
    precision. Often few tensors cost nearly everything: an activation in which one channel is much larger than the
    others (the output of a LayerNormalization), the sum before a Softmax. `dovetail sensitivity` quantizes every
    operator alone and ranks them by what they cost at the outputs, or in the metric. Otherwise try `--range mse` or
    `--range percentile`, more calibration samples, or a wider precision for the whole model. If the loss is acceptable,
    set `--min-sqnr` and `--max-drop`.

    ## Seen on
    - ort-cpu: onnxruntime 1.31.1, measured (tests/verify/test_accuracy.py): a digits ViT with outlier channels in w8a8
      falls from 99.56 % to 10.22 % top-1, while target and simulation agree.
    """,
)

WRONG_CALIBRATION_DATA = explanation(
    "Q506",
    "wrong_calibration_data",
    """The calibration data cannot be what the model was trained on.

    ## What it finds
    Two kinds of evidence, for float inputs of the model:

    - the held-out data (`--eval`) has another range: it is an eighth of that of the calibration data or less, or eight
      times as wide or more, which is an error; or 5 % of its values are outside the calibrated range, a warning.
      Inputs with fewer than 64 values are not compared;
    - the first layers saturate on calibration samples, a warning, because a model can be made so: in the first half of
      the graph, 95 % of the values of the first Sigmoid, Tanh, HardSigmoid or Clip, or of the rows of the first
      Softmax, are at a limit; or the tensor to which a position embedding is added is 50 times as large as it.

    ## Why it matters
    Ranges are taken from the calibration data. With images in 0..255 for a model that was trained on 0..1, 8 bits have
    one step for all values that occur; with the opposite error nearly all values are clipped. The simulation on the
    same data may still look fine.

    ## How to fix it
    Preprocess the calibration data exactly as for training: divide by 255, subtract the mean, divide by the standard
    deviation, in the same channel order. For a folder of images use `--mean` and `--std`. If the finding is about the
    held-out data, check which of the two is wrong.

    ## Seen on
    - every target, by arithmetic: ranges of 0..255 have the step 1 in 8 bits, so 0..1 has two values.
    - ort-cpu: onnxruntime 1.31.1, measured (tests/verify/test_calibration_data.py) on the shipped models with inputs
      multiplied by 255: the position embedding is 359 to 444 times smaller than what it is added to (1.5 to 3.7 times
      with the right inputs), and over 99 % of the rows of the detector's first Softmax saturate (none).
    """,
)
