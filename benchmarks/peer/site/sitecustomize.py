"""Puts a no-op backend in the peer's place of MLX, in its parent and in its worker. Needs no Mac."""

import os
import sys
import types

if os.environ.get("LAYA_PEER_NOOP"):
    import numpy as np

    class MLXBackend:
        name = "mlx"
        device = "gpu"
        buckets = ()

        def __init__(self, *_, **__):
            pass

        def forward(self, items):
            return np.zeros((len(items), 3), np.float32), np.zeros((len(items), 2), np.float32)

        def artifact_revision(self, items):
            return "no-op"

    module = types.ModuleType("laya_apple.backends.mlx")
    module.MLXBackend = MLXBackend
    module.mlx_revision = lambda *_: "no-op"
    module.compile_enabled = lambda: False
    sys.modules["laya_apple.backends.mlx"] = module
