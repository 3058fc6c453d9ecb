"""In which precision a device trains."""

from __future__ import annotations

import torch


def multiplies_bfloat16(kind: str) -> bool:
    """Whether a device of this kind ("cpu", "cuda") multiplies bfloat16. A processor that converts in software takes
    longer than in float32."""
    return kind != "cpu" or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
