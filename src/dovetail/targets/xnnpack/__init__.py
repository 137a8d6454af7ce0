"""``xnnpack``: ExecuTorch's XNNPACK backend, lowered and run on this machine."""
