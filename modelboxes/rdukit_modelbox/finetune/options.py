"""Choices of ``rdukit finetune``."""

from dataclasses import dataclass
from typing import Final

from rdukit_modelbox.tasks.frozen_weights import F32

#: Default learning rates. Source: ours; usual values of open recipes.
FULL_LR: Final = 5e-5
LORA_LR: Final = 2e-4
PREFERENCE_LR: Final = 1e-6
PREFERENCE_LORA_LR: Final = 1e-5
#: Source: ours; twice the usual rank of 8.
LORA_ALPHA: Final = 16.0


@dataclass(frozen=True, slots=True)
class FinetuneOptions:
    """Choices of a fine-tuning; a count of 0 stands for a suitable default."""

    #: Rank of the updates next to frozen weights; 0: all weights train.
    lora: int = 0
    #: 0: ``LORA_ALPHA``, or the value of the adapter from which the training continues.
    lora_alpha: float = 0.0
    #: Layers with updates, by full names or their last parts; empty: all linear layers but heads.
    lora_layers: tuple[str, ...] = ()
    #: Precision of the frozen base next to the updates: f32, bf16, int8 or int4.
    base_precision: str = F32
    #: Tokens of a sequence.
    context: int = 512
    batch_size: int = 8
    epochs: int = 1
    max_steps: int = 0
    #: 0: ``FULL_LR`` or ``LORA_LR``.
    lr: float = 0.0
    warmup_steps: int = 0
    #: Share of the records that the model is judged on.
    dev_ratio: float = 0.05
    seed: int = 0
    #: For preference pairs: strength that keeps the model close to its initial weights.
    beta: float = 0.1
    #: Batches of a step.
    accumulation_steps: int = 1
    #: Decay of the weights' average, which is judged and exported; 0: the newest weights are.
    ema_decay: float = 0.0
    #: Learning rate of a layer, over that of the next one.
    layer_decay: float = 1.0
    #: Changes to training pictures, as NAME=VALUE with commas; empty: no change.
    augment: str = ""
