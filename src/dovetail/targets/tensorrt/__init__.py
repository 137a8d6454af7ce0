"""``tensorrt``: NVIDIA GPUs, with engines built ahead of time on the CPU by TensorRT-RTX."""
