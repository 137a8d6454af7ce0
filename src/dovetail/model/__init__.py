"""The ONNX model: reading, writing, editing it in place, and the trail back to its original names."""
