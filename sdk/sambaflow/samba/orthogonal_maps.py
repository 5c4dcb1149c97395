"""Maps onto orthogonal matrices in products of static shape: what ``parametrizations.orthogonal`` computes.

The device has no matrix decompositions. Torch's own forms choose their steps by the values; these take as many steps as
any value needs, and switch off the surplus. What would need more is NaN, never a wrong number. Source: ours.
"""

from typing import Final

import torch

#: Powers of the exponential's series, by dtype, and the 1-norm up to which they suffice: 2**15 / 15! is 2.5e-8.
_POWERS: Final = {torch.float32: 14, torch.float64: 22}
_SERIES_NORM: Final = 2.0
#: Squarings, and Newton steps: enough for 1-norms up to 2**15, and condition numbers up to 2**12.
_MOST_SQUARINGS: Final = 14
_NEWTON_STEPS: Final = 30
#: The inverse is refused (NaN) if its product with the matrix is farther from the identity.
_INVERSE_ERROR: Final = 1e-2


def matrix_exp(a: torch.Tensor) -> torch.Tensor:
    """``torch.matrix_exp`` of [..., N, N]: a series of the matrix divided by 2**s, squared s times."""
    x = _wide(a)
    identity = torch.eye(x.shape[-1], dtype=x.dtype)
    norm = x.detach().abs().sum(-2).amax(-1)[..., None, None]
    squarings = (norm / _SERIES_NORM).clamp_min(1.0).log2().ceil()
    x = x * torch.exp2(-squarings)
    made = identity.expand_as(x)
    for power in range(_POWERS[x.dtype], 0, -1):
        made = identity + (x @ made) / power
    for number in range(_MOST_SQUARINGS):
        is_needed = squarings > number
        made = torch.where(is_needed, _square(torch.where(is_needed, made, identity)), made)
    return torch.where(squarings > _MOST_SQUARINGS, torch.nan, made).to(a.dtype)


def solve_near_identity(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``torch.linalg.solve(a, b)`` by Newton's iteration for the inverse of a well conditioned [..., N, N].

    The last step alone is differentiated: its gradient is the inverse's own.
    """
    x = _wide(a)
    identity = torch.eye(x.shape[-1], dtype=x.dtype)
    held = x.detach()
    bound = held.abs().sum(-2).amax(-1) * held.abs().sum(-1).amax(-1)
    inverse = held.mT / bound[..., None, None]
    for _ in range(_NEWTON_STEPS):
        inverse = inverse @ (2 * identity - held @ inverse)
    error = (identity - held @ inverse).abs().amax((-2, -1), keepdim=True)
    inverse = inverse @ (2 * identity - x @ inverse)
    solved = inverse @ _wide(b)
    return torch.where(error < _INVERSE_ERROR, solved, torch.nan).to(a.dtype)


def householder_product(a: torch.Tensor, tau: torch.Tensor) -> torch.Tensor:
    """``torch.linalg.householder_product`` of [..., N, K] and [..., K], one reflection after the other."""
    x, scales = _wide(a), _wide(tau)
    rows, columns = x.shape[-2:]
    made = torch.eye(rows, columns, dtype=x.dtype).expand_as(x)
    units = torch.eye(rows, dtype=x.dtype)
    below = torch.ones(rows, columns, dtype=x.dtype).tril(-1)
    for number in reversed(range(columns)):
        vector = (x[..., :, number] * below[:, number] + units[number]).unsqueeze(-1)
        made = made - scales[..., number, None, None] * vector * (vector.mT @ made)
    return made.to(a.dtype)


def _square(x: torch.Tensor) -> torch.Tensor:
    return x @ x


def _wide(x: torch.Tensor) -> torch.Tensor:
    """In float32 whatever the device computes in, unless it is wider: rounding would add up over the steps."""
    return x if x.dtype == torch.float64 else x.to(torch.float32)
