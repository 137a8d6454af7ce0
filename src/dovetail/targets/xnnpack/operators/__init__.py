"""ONNX operators as torch functions, one file per kind."""
