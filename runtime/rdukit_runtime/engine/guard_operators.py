"""The check of a condition that forward was compiled for: torch's operator, with an error of ours.

A model that asks whether its numbers are finite is compiled for those that are, and by opt-in one that looks at other
data for what the example inputs gave. Guards run when all other sections of
forward have, before any gradient is computed and any weight is updated. Source: ours.
"""

from typing import Any, Final

import torch

from rdukit.errors import SectionFailed


def check_condition(holds: torch.Tensor, asked: str, token: torch.Tensor) -> torch.Tensor:
    """``token``, of which nothing reads the value.

    Args:
        holds: [] bool. asked: file, line and text of the condition.
    Raises:
        SectionFailed: ``holds`` is false.
    """
    if not bool(holds):
        raise SectionFailed(
            f"forward looks at data at {asked}: it was compiled for what finite numbers give, for checks that hold, "
            "for the model's buffers as they were, or with RDUKIT_SUPPOSE_EXAMPLE for the example inputs, and this run "
            "gives something else. Nothing was trained by it: compile again for other buffers; look for NaN and "
            "infinity (inputs, learning rate, --precision f32), or write it without a condition: torch.where, "
            "torch.nan_to_num, clamp, masks"
        )
    return token.clone()


GUARD_OPERATORS: Final[dict[str, Any]] = {"aten._functional_assert_async.msg": check_condition}
