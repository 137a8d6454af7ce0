"""Planning: choose the dtype and quantization parameters of every tensor, edge and constant for a target."""
