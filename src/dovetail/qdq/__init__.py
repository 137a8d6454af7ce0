"""Plans as QDQ ONNX graphs, and QDQ ONNX graphs as plans."""
