"""Plan -> QDQ ONNX graph, and QDQ ONNX graph -> plan."""
