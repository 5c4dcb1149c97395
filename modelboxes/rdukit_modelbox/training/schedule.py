"""The learning rate of a step. Pure."""

import math


def learning_rate(step: int, total: int, lr: float, schedule: str, warmup_steps: int, final_share: float) -> float:
    """The rate of the step with index ``step`` of ``total``.

    It rises in equal parts to ``lr`` at the last warm-up step; from there ``linear`` and ``cosine`` fall to
    ``final_share * lr`` at the last step, and ``constant`` stays.
    """
    if step < warmup_steps:
        return lr * (step + 1) / warmup_steps
    if schedule == "constant":
        return lr
    way = max(1, total - 1 - warmup_steps)
    done = min(1.0, (step - warmup_steps) / way)
    share = 1.0 - done if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return lr * (final_share + (1.0 - final_share) * share)
