"""Linear layers with their weights packed once for the CPU's matrix kernels.

oneDNN multiplies a weight in a layout of its own. Torch's plain `nn.Linear` converts to it at every call, which
costs more than the product when few tokens are decoded; packed, a decode step is two to three times as fast.
"""

from __future__ import annotations

import torch
from torch import nn

_FEWEST_WEIGHTS = 4096
"""smaller matrices gain nothing from packing"""


class PackedLinear(nn.Module):
    """y = x W^T + b with W in oneDNN's layout. Shapes: x [..., in_features], result [..., out_features]."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self.bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return result


def can_pack(device: str, dtype: torch.dtype) -> bool:
    """Whether this torch build packs for this device and dtype."""
    return (
        torch.device(device).type == "cpu"
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and dtype in (torch.bfloat16, torch.float32)
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    )


def pack_linears(model: nn.Module) -> int:
    """Replace every plain nn.Linear of a model in place. Returns how many.

    The unpacked weights are dropped, except where another module shares them (tied embeddings).
    """
    packed = 0
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear and child.weight.numel() >= _FEWEST_WEIGHTS:
                setattr(module, name, PackedLinear(child))
                packed += 1
    return packed
