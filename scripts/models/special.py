"""What the rules of ``tiny`` and ``build`` miss, as data: attributes and inputs of single architectures."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

#: A backbone of four small stages.
_RESNET: Final = {
    "model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1],
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
}  # fmt: skip

_BACKBONE: Final = {
    "backbone_config": _RESNET, "use_timm_backbone": False, "backbone": None, "use_pretrained_backbone": False,
}  # fmt: skip

#: Kind of model → attributes of its configuration.
SPECIAL_CONFIGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    "bamba": {"attn_layer_indices": [1]},
    "autoformer": {"prediction_length": 4, "context_length": 8},
    "informer": {"prediction_length": 4, "context_length": 8},
    "time_series_transformer": {"prediction_length": 4, "context_length": 8},
    "detr": _BACKBONE,
    "conditional_detr": _BACKBONE,
    "deformable_detr": _BACKBONE,
    "dab-detr": _BACKBONE,
    "table-transformer": _BACKBONE,
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "swin": {"embed_dim": 24, "image_size": 128, "patch_size": 4, "window_size": 4},
    "swinv2": {"embed_dim": 24, "image_size": 64, "patch_size": 4, "window_size": 4},
    "donut-swin": {"embed_dim": 24, "image_size": 128, "patch_size": 4, "window_size": 4},
    "hunyuan_v1_dense": {"head_dim": 8},
    "reformer": {"is_decoder": True, "axial_pos_embds": False},
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 1},
    "esm": {"vocab_size": 99, "pad_token_id": 1, "mask_token_id": 4},
    "hunyuan_vl_text": {"head_dim": 8},
    "mimi_decoder": {"upsample_groups": 32},
    "mimi": {"upsample_groups": 32},
    "wav2vec2-conformer": {"vocab_size": 99},
    "wav2vec2-bert": {"vocab_size": 99},
    "unispeech-sat": {"vocab_size": 99},
    "efficientnet": {"hidden_dim": 2560},
    "upernet": {"backbone_config": _RESNET},
    "zoedepth": {"backbone_config": _RESNET},
}


def _with_mask(config: Any) -> dict[str, torch.Tensor]:
    """Models whose forward makes no mask of its own when it is compiled."""
    numbers = torch.Generator().manual_seed(2)
    ids = torch.randint(3, 75, (2, 12), generator=numbers)
    masks = {"attention_mask": torch.ones(2, 12), "decoder_attention_mask": torch.ones(2, 7)}
    return {"input_ids": ids, "decoder_input_ids": ids[:, :7].clone(), **masks}


#: Kind of model → its inputs.
SPECIAL_INPUTS: Final[Mapping[str, Callable[[Any], dict[str, torch.Tensor]]]] = {"switch_transformers": _with_mask}
