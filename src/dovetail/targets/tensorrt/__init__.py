"""``tensorrt``: NVIDIA GPUs, built ahead of time on the CPU by TensorRT-RTX."""
