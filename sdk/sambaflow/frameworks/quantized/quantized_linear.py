"""QuantizedLinear: weights as int8 with a scale per output. Source: SDK reference 3 (only the name is public)."""

import torch
from torch import nn


class QuantizedLinear(nn.Module):
    """A linear layer for inference, [.., in] → [.., out]: symmetric int8 weights; activations keep their dtype."""

    weight: torch.Tensor
    scale: torch.Tensor
    bias: torch.Tensor | None

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.register_buffer("weight", torch.zeros(out_features, in_features, dtype=torch.int8))
        self.register_buffer("scale", torch.ones(out_features))
        self.register_buffer("bias", torch.zeros(out_features) if bias else None)

    @classmethod
    def from_linear(cls, linear: nn.Linear) -> "QuantizedLinear":
        """Quantize a layer's weights, each output by its largest magnitude."""
        made = cls(linear.in_features, linear.out_features, linear.bias is not None)
        weight = linear.weight.data.float()
        made.scale.copy_(weight.abs().amax(1).clamp(min=1e-12) / 127.0)
        made.weight.copy_(torch.round(weight / made.scale[:, None]).clamp(-127, 127).to(torch.int8))
        if made.bias is not None:
            made.bias.copy_(linear.bias.data.float())
        return made

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = torch.nn.functional.linear(x, self.weight.to(x.dtype)) * self.scale.to(x.dtype)
        return made if self.bias is None else made + self.bias.to(x.dtype)


__all__ = ["QuantizedLinear"]
