"""``ort-cpu``: ONNX Runtime on the CPU, the reference target."""
