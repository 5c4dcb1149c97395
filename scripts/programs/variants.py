"""Variants of the public programs: other lengths, batches, modes, precisions, architectures, and data parallel. Data.

Each is a few commands of ``plan.py`` with other options; ``sample`` draws some of them by a seed.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from plan import Step, lenet_steps, logreg_steps, parallel_steps, text_steps, train_steps

_THREE: Final = "generation.batch_size=3 generation.prompts=[Once,There,The]"
_LENGTHS: Final = "generation.batch_size=2 generation.prompts=[Once,There] +generation.static_seq_lengths=[16,48]"
#: What the Model Zoo's configuration of the high-density mode sets, o1hd_config_rdu.yaml.
_O1HD: Final = (
    "samba_compile.n_chips=8 +samba_compile.run_early_tp=True +samba_compile.enable_coe=True "
    "+samba_compile.compiler_configs_file={programs}/modelzoo/examples/nlp/text_generation/config/o1hd_config.json"
)
_HEURISTICS: Final = "+model.use_plugin_heuristics=True +model.run_early_tp=True"
_SEGMENTED: Final = "+model.use_segmented_softmax_attn=True +model.seg_softmax_block_size=16"


def text(family: str, about: str, both: str = "", compiled: str = "", length: int | None = 64) -> list[Step]:
    return text_steps(family, f"{family}, {about}", both, compiled, length)


def train(family: str, about: str, both: str = "", compiled: str = "", batch: int = 4) -> list[Step]:
    return train_steps(family, f"{family}, {about}", both, compiled, batch)


def _mode(mode: str) -> str:
    return f"samba_compile.optim_level={mode}"


#: Each gives its steps, in the order in which they need each other.
VARIANTS: Final[tuple[Callable[[], list[Step]], ...]] = (
    lambda: text("llama", "length 4096 by default", length=None),
    lambda: text("llama", "length 32", length=32),
    lambda: text("llama", "length 128, 3 prompts", _THREE, length=128),
    lambda: text("llama", "o0", compiled=_mode("o0")),
    lambda: text("llama", "o3", compiled=_mode("o3")),
    lambda: text("llama2", "O1HD", _HEURISTICS, _O1HD),
    lambda: text("llama", "fp32_skip_add off", "model.fp32_skip_add=False"),
    lambda: text("llama", "mixedp_attn off", "model.mixedp_attn=False"),
    lambda: text("llama", "segmented softmax", _SEGMENTED),
    lambda: text("mistral", "length 48 from two lengths", _LENGTHS, length=48),
    lambda: text("mistral", "fp32_ln", "model.fp32_ln=True"),
    lambda: text("mistral", "o0, sn30", compiled=f"{_mode('o0')} samba_compile.arch=sn30"),
    lambda: text("mistral", "O1HD", _HEURISTICS, _O1HD),
    lambda: text("gemma", "length 96, o3", compiled=_mode("o3"), length=96),
    lambda: text("gemma", "fp32_logits off", "model.fp32_logits=False"),
    lambda: text("gemma", "sn20", compiled="samba_compile.arch=sn20"),
    lambda: train("llama", "o0", compiled=_mode("o0")),
    lambda: train("llama", "o3", compiled=_mode("o3")),
    lambda: train("llama", "batch 1", batch=1),
    lambda: train("llama", "fp32_ln", "model.fp32_ln=True"),
    lambda: train("llama", "mixedp_attn off", "model.mixedp_attn=False"),
    lambda: train("mistral", "batch 2", batch=2),
    lambda: train("gemma", "tied head"),
    lambda: parallel_steps("gemma", "gemma"),
    lambda: parallel_steps("llama", "o0", compiled=_mode("o0")),
    lambda: lenet_steps("lenet, batch 64", 64, ran="--num-epochs 3"),
    lambda: lenet_steps("lenet, o0", compiled="--o0"),
    lambda: lenet_steps("lenet, o3", compiled="--o3"),
    lambda: lenet_steps("lenet, data parallel", 16, "--data-parallel -ws 2", "--data-parallel", 2),
    lambda: logreg_steps("logreg, batch 8", "--batch-size 8"),
    lambda: logreg_steps("logreg, bias, o3", "--bias", "--o3"),
    lambda: logreg_steps("logreg, data parallel", "--data-parallel", "-ws 2", ranks=2),
)  # fmt: skip


def sample(count: int, seed: int) -> list[Step]:
    """Return the steps of ``count`` variants, drawn by ``seed``; of all if there are no more."""
    drawn = sorted(random.Random(seed).sample(range(len(VARIANTS)), min(count, len(VARIANTS))))
    return [replace(step, is_variant=True) for number in drawn for step in VARIANTS[number]()]
