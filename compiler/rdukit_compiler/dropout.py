"""Dropout in operators that can be differentiated, cut and split."""

import torch


def dropout(x: torch.Tensor, p: "float | torch.Tensor", train: bool) -> torch.Tensor:
    """As operators that can be split; torch's own form fills a mask in place. The rate may be a tensor []."""
    if isinstance(p, torch.Tensor) or (train and 0 < p < 1):
        return _scaled(x, torch.rand(x.shape, dtype=torch.float32, device=x.device), p)
    made: torch.Tensor = torch.ops.aten.dropout.default(x, p, train)
    return made


def feature_dropout(x: torch.Tensor, p: "float | torch.Tensor", train: bool) -> torch.Tensor:
    """Dropout of whole channels: x [N, C, …]."""
    if isinstance(p, torch.Tensor) or (train and 0 < p < 1):
        shape = (*x.shape[:2], *(1 for _ in x.shape[2:]))
        return _scaled(x, torch.rand(shape, dtype=torch.float32, device=x.device), p)
    made: torch.Tensor = torch.ops.aten.feature_dropout.default(x, p, train)
    return made


def _scaled(x: torch.Tensor, numbers: torch.Tensor, p: "float | torch.Tensor") -> torch.Tensor:
    """``x`` where a uniform number is at least ``p``, so scaled that its mean stays; zeros for a rate of 1."""
    kept = x * (numbers >= p)
    return kept * (1 - p).clamp_min(1e-6).reciprocal() if isinstance(p, torch.Tensor) else kept * (1 / (1 - p))
