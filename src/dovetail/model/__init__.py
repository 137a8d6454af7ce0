"""The ONNX model: reading it, writing it, editing it in place, and mapping it back to its original names."""
