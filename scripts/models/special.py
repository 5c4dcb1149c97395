"""Attributes and inputs of single architectures, as data, for which the rules of ``tiny`` and ``build`` fail."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from tiny import Part

#: A backbone of four small stages.
_RESNET: Final = {
    "model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1],
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
}  # fmt: skip

_BACKBONE: Final = {
    "backbone_config": _RESNET, "use_timm_backbone": False, "backbone": None, "use_pretrained_backbone": False,
}  # fmt: skip

_SWIN: Final = {
    "model_type": "swin", "embed_dim": 24, "image_size": 64, "patch_size": 4, "window_size": 4,
    "depths": [1, 1, 1, 1], "num_heads": [2, 2, 2, 2], "out_features": ["stage1", "stage2", "stage3", "stage4"],
}  # fmt: skip

_VIT: Final = {
    "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "image_size": 32, "patch_size": 8,
    "intermediate_size": 64, "out_features": ["stage1", "stage2", "stage3", "stage4"], "reshape_hidden_states": False,
}  # fmt: skip
_DEPTH: Final = {
    "backbone_config": {"model_type": "dinov2", **_VIT}, "backbone": None, "patch_size": 8,
    "neck_hidden_sizes": [16, 16, 16, 16], "fusion_hidden_size": 16, "reassemble_hidden_size": 32,
}  # fmt: skip

_EXPERTS: Final = {
    "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 1,
    "topk_group": 1, "first_k_dense_replace": 1,
}  # fmt: skip

_ROTARY: Final = {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}}

_SERIES: Final = {"prediction_length": 4, "context_length": 8, "num_time_features": 1}

_RT_RESNET: Final = {
    "model_type": "rt_detr_resnet", "embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1],
    "layer_type": "basic", "out_features": ["stage2", "stage3", "stage4"],
}  # fmt: skip
_RT_DETR: Final = {
    "backbone_config": _RT_RESNET, "backbone": None, "encoder_in_channels": [16, 24, 32], "d_model": 32,
    "decoder_in_channels": [32, 32, 32], "encoder_hidden_dim": 32, "num_queries": 8,
}  # fmt: skip

_GROUNDING: Final = {
    "backbone_config": {**_SWIN, "out_features": ["stage2", "stage3", "stage4"]}, "backbone": None,
}  # fmt: skip

_COMPASS: Final = {
    "rope_parameters": {
        "full_attention": {"rope_theta": 10000.0, "rope_type": "default", "mrope_section": [2, 1, 1]},
    },
}

#: Kind of model → attributes of its configuration; ``Part`` adds to those of a part.
SPECIAL_CONFIGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    "bamba": {"attn_layer_indices": [1]},
    "autoformer": {**_SERIES, "label_length": 4},
    "blip-2": {"image_token_index": 90},
    "instructblip": {"image_token_index": 90},
    "instructblipvideo": {"video_token_index": 90, "num_query_tokens": 4},
    "cohere_compass_text": _COMPASS,
    "cohere_compass": {"text_config": Part(_COMPASS)},
    **dict.fromkeys(
        ("rt_detr", "rt_detr_v2", "d_fine", "deimv2", "pp_doclayout_v2", "pp_doclayout_v3", "pp_doclayout_v4"), _RT_DETR
    ),
    **dict.fromkeys(("grounding-dino", "mm-grounding-dino"), _GROUNDING),
    "dpt": {
        "num_hidden_layers": 4,
        "backbone_out_indices": [0, 1, 2, 3],
        "neck_hidden_sizes": [16] * 4,
        "fusion_hidden_size": 16,
    },
    "zoedepth": {**_DEPTH, "bottleneck_features": 16},
    "tvp": {"max_img_size": 64, "visual_prompt_size": 16},
    "informer": _SERIES,
    "time_series_transformer": _SERIES,
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
    "glm5_next": {"text_config": Part(index_kpool=4)},
    "inkling_mm_model": {"vision_config": Part(num_hidden_layers=3, patch_size=4)},
    "glm5_next_text": {"index_kpool": 4},
    "maskformer": {"backbone_config": _SWIN, "backbone": None},
    "mask2former": {"backbone_config": _SWIN, "backbone": None, "feature_size": 32, "mask_feature_size": 32},
    "oneformer": {"backbone_config": _SWIN, "backbone": None, "conv_dim": 32, "mask_dim": 32},
    "maskformer-swin": {"embed_dim": 24, "image_size": 64, "patch_size": 4, "window_size": 4, "num_heads": [2] * 4},
    "kosmos-2": {"latent_query_num": 4},
    "shieldgemma2": {"yes_token_index": 5, "no_token_index": 6},
    "depth_anything": _DEPTH,
    "prompt_depth_anything": _DEPTH,
    "chmv2": {**_DEPTH, "backbone_config": {"model_type": "dinov3_vit", **_VIT}},
    "dots1": _EXPERTS,
    "deepseek_v2": _EXPERTS,
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_heads": 8, "mamba_d_head": 8},
    "dots3_note": {"adapter_in_dim": 32},
    "hunyuan_v1_moe": {"head_dim": 8, **_ROTARY},
    "hunyuan_vl": {"text_config": Part(head_dim=8)},
    "ministral": {"head_dim": 8, **_ROTARY},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "gemma4_assistant": {"text_config": Part(hidden_size_per_layer_input=0)},
    "xmod": {"default_language": "en_XX"},
    "nemotron_h_omni": {"vision_config": Part(video_temporal_patch_size=2)},
    "t5gemma2_encoder": {"text_config": Part(dropout_rate=0.0)},
    "fun_asr_nano": {"adaptor_config": Part(intermediate_size=8)},
    "nemotron": {"head_dim": 8, "num_key_value_heads": 2},
    "molmo2": {"adapter_config": Part(vision_feature_layer=[1, 0])},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "csm": {"codec_config": Part(upsample_groups=32)},
    "kyutai_speech_to_text": {"codec_config": Part(upsample_groups=32)},
    "pocket_tts_audio_tokenizer": {"upsample_groups": 32},
    "pocket_tts_audio_tokenizer_decoder": {"upsample_groups": 32},
    "esmc": {"num_key_value_heads": 4},
    "chameleon": {"vocabulary_map": {"<image>": 4, "IMGIMGA": 5}},
    "granite_speech5_ctc": {"encoder_config": Part(context_size=8)},
    "granite_speech5_encoder": {"context_size": 8},
    "lw_detr": {"backbone_config": Part(num_windows=4, image_size=64)},
    "moonshine_streaming": {"num_key_value_heads": 4},
    "timm_backbone": {"backbone": "resnet10t", "use_timm_backbone": True},
    "step3p7": {"text_config": Part(sliding_window=8)},
    "pi0": {"chunk_size": 4, "max_state_dim": 8, "max_action_dim": 8},
    "nemo_speechlm": {"head_config": Part(audio_hidden_size=32)},
    "xlstm": {
        "hidden_size": 64,
        "embedding_dim": 64,
        "num_heads": 4,
        "qk_dim_factor": 0.5,
        "v_dim_factor": 1.0,
        "chunk_size": 16,
    },
    "sapiens2": {"num_key_value_heads": None},
    "patchtst": {"context_length": 16, "patch_length": 4, "patch_stride": 4, "num_input_channels": 2},
    "patchtsmixer": {"context_length": 16, "patch_length": 4, "patch_stride": 4, "num_input_channels": 2},
    "timesfm": {"context_length": 64, "horizon_length": 16, "patch_length": 16},
    "bridgetower": {"text_config": Part(num_attention_heads=4), "vision_config": Part(hidden_size=32)},
    "dia": {
        "encoder_config": Part(hidden_size=32),
        "decoder_config": Part(
            cross_hidden_size=32, cross_head_dim=8, cross_num_attention_heads=4, cross_num_key_value_heads=4
        ),
    },
    "pix2struct": {"vision_config": Part(patch_embed_hidden_size=32), "text_config": Part(hidden_size=32)},
}


def _with_mask(config: Any) -> dict[str, torch.Tensor]:
    """Return inputs with a mask, for models whose compiled forward creates none."""
    numbers = torch.Generator().manual_seed(2)
    ids = torch.randint(3, 75, (2, 12), generator=numbers)
    masks = {"attention_mask": torch.ones(2, 12), "decoder_attention_mask": torch.ones(2, 7)}
    return {"input_ids": ids, "decoder_input_ids": ids[:, :7].clone(), **masks}


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(4))


def _ids(length: int = 12) -> torch.Tensor:
    return torch.randint(5, 75, (2, length), generator=torch.Generator().manual_seed(2))


def _series(config: Any) -> dict[str, torch.Tensor]:
    past = config.context_length + max(config.lags_sequence)
    return {
        "past_values": _random(2, past), "past_time_features": _random(2, past, 1),
        "past_observed_mask": torch.ones(2, past), "future_values": _random(2, config.prediction_length),
        "future_time_features": _random(2, config.prediction_length, 1),
    }  # fmt: skip


def _patched_series(config: Any) -> dict[str, torch.Tensor]:
    return {"past_values": _random(2, config.context_length, config.num_input_channels)}


def _forecast(config: Any) -> dict[str, torch.Tensor]:
    return {"past_values": _random(2, config.context_length)}


def _trajectories(config: Any) -> dict[str, torch.Tensor]:
    return {
        "states": _random(2, 6, config.state_dim), "actions": _random(2, 6, config.act_dim),
        "rewards": _random(2, 6, 1), "returns_to_go": _random(2, 6, 1),
        "timesteps": torch.arange(6).expand(2, 6).contiguous(), "attention_mask": torch.ones(2, 6),
    }  # fmt: skip


def _regions(config: Any) -> dict[str, torch.Tensor]:
    return {
        "input_ids": _ids(), "visual_feats": _random(2, 5, config.visual_feat_dim),
        "visual_pos": _random(2, 5, 4).sigmoid(),
    }  # fmt: skip


def _clips(config: Any) -> dict[str, torch.Tensor]:
    vision = getattr(config, "vision_config", config)
    side = getattr(vision, "image_size", None) or 64
    side = side if isinstance(side, int) else side[0]
    frames = getattr(vision, "num_frames", None) or 4
    return {"input_ids": _ids(), "attention_mask": torch.ones(2, 12, dtype=torch.long),
            "pixel_values": _random(2, frames, 3, side, side)}  # fmt: skip


def _videos(config: Any) -> dict[str, torch.Tensor]:
    given = _clips(config)
    return {"input_ids": given["input_ids"], "pixel_values_videos": given["pixel_values"]}


def _queries(config: Any) -> dict[str, torch.Tensor]:
    width = getattr(config, "encoder_hidden_size", 32)
    return {"query_embeds": _random(2, 4, config.hidden_size), "encoder_hidden_states": _random(2, 6, width)}


def _image_and_text(config: Any) -> dict[str, torch.Tensor]:
    """Return inputs with one image token for each query of the model."""
    is_video = "video" in config.model_type
    count, token = config.num_query_tokens * (4 if is_video else 1), 90
    ids = torch.cat([torch.full((2, count), token), _ids()], 1)
    side = config.vision_config.image_size
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": _random(2, 3, side, side)}
    if "instruct" in config.model_type:
        given |= {"qformer_input_ids": _ids(), "qformer_attention_mask": torch.ones(2, 12, dtype=torch.long)}
    if is_video:
        given["pixel_values"] = _random(2, 4, 3, side, side)
    return given


def _grounded(config: Any) -> dict[str, torch.Tensor]:
    mask = torch.zeros(2, 12, dtype=torch.long)
    mask[:, 1 : 1 + config.latent_query_num] = 1
    side = config.vision_config.image_size
    return {"input_ids": _ids(), "pixel_values": _random(2, 3, side, side), "image_embeds_position_mask": mask}


def _flat_patches(config: Any) -> dict[str, torch.Tensor]:
    width = config.vision_config.patch_embed_hidden_size
    places = torch.stack(torch.meshgrid(torch.arange(1.0, 4), torch.arange(1.0, 4), indexing="ij"), -1).reshape(9, 2)
    rows = torch.cat([places.expand(2, 9, 2), _random(2, 9, width)], -1)
    return {"flattened_patches": rows, "attention_mask": torch.ones(2, 9), "decoder_input_ids": _ids(7)}


def _prompted(config: Any) -> dict[str, torch.Tensor]:
    height, width = config.image_size if not isinstance(config.image_size, int) else (config.image_size,) * 2
    image = (2, 3, height // 2, width)
    return {"pixel_values": _random(*image), "prompt_pixel_values": _random(*image), "prompt_masks": _random(*image)}


def _placed_patches(config: Any) -> dict[str, torch.Tensor]:
    side = config.patch_size
    places = torch.stack(torch.meshgrid(torch.arange(6), torch.arange(6), indexing="ij"), -1).reshape(36, 2)
    return {"pixel_values": _random(2, 36, 3 * side * side), "pixel_position_ids": places.repeat(2, 1, 1)}


def _spectrum(config: Any) -> dict[str, torch.Tensor]:
    bins = getattr(config, "input_feat_size", 128)
    return {"audio_mel": _random(2, 64, bins), "audio_mel_mask": torch.zeros(2, 64, dtype=torch.bool)}


def _codes(config: Any) -> dict[str, torch.Tensor]:
    channels = config.decoder_config.num_channels
    codes = torch.randint(0, 60, (2, 7, channels), generator=torch.Generator().manual_seed(2))
    return {"input_ids": _ids(), "decoder_input_ids": codes}


def _pairs(config: Any) -> dict[str, torch.Tensor]:
    return {"pixel_values": _random(1, 2, 3, 64, 64)}


def _robot(config: Any) -> dict[str, torch.Tensor]:
    vision = config.vlm_config.vision_config
    tokens = (vision.image_size // vision.patch_size) ** 2
    ids = torch.cat([torch.full((2, tokens), config.vlm_config.image_token_id), _ids()], 1)
    return {
        "input_ids": ids, "attention_mask": torch.ones_like(ids), "state": _random(2, config.max_state_dim),
        "pixel_values": _random(2, 1, 3, vision.image_size, vision.image_size),
        "pixel_attention_mask": torch.ones(2, 1, dtype=torch.bool),
        "noise": _random(2, config.chunk_size, config.max_action_dim), "timestep": torch.full((2,), 0.5),
        "actions": _random(2, config.chunk_size, config.max_action_dim),
    }  # fmt: skip


def _noised(config: Any) -> dict[str, torch.Tensor]:
    return {
        "noise_embeds": _random(2, 4, config.hidden_size),
        "context_hidden_states": _random(2, 12, 2 * config.hidden_size),
    }


def _interleaved(config: Any) -> dict[str, torch.Tensor]:
    side = config.vision_config.image_size
    return {"input_ids": _ids(), "attention_mask": torch.ones(2, 12, dtype=torch.long),
            "pixel_values": _random(2, 1, 3, side, side), "image_attention_mask": torch.ones(2, 12, 1)}  # fmt: skip


def _channel_first(channels: int) -> Callable[[Any], dict[str, torch.Tensor]]:
    return lambda config: {"hidden_states": _random(2, channels or config.hidden_size, 6400 if channels else 4)}


def _windows(config: Any) -> dict[str, torch.Tensor]:
    return {"input_features": _random(2, config.num_mel_bins, 200), "input_features_mask": torch.ones(2, 200).long()}


def _stacked(config: Any) -> dict[str, torch.Tensor]:
    return {"input_features": _random(2, 32, 320)}


def _with_task(config: Any) -> dict[str, torch.Tensor]:
    return {"pixel_values": _random(2, 3, 64, 64), "task_inputs": _ids(config.task_seq_len)}


def _steps_of_codes(config: Any) -> dict[str, torch.Tensor]:
    return {"input_ids": torch.cat([_ids()[..., None]] * (config.num_codebooks + 1), -1)}


def _prefixed(config: Any) -> dict[str, torch.Tensor]:
    """An image and a prompt, and which ids they are: without, transformers masks otherwise when it is traced."""
    vision = config.vision_config
    patches = torch.full((2, (vision.image_size // vision.patch_size) ** 2), config.image_token_id)
    ids = torch.cat([patches, _ids()], 1)
    kinds = torch.cat([torch.zeros_like(patches), torch.arange(12).expand(2, 12) // 6], 1)
    side = vision.image_size
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": kinds,
            "pixel_values": _random(2, 3, side, side)}  # fmt: skip


def _mono(config: Any) -> dict[str, torch.Tensor]:
    return {"input_values": _random(2, 1, 16000)}


def _pictures(side: int) -> Callable[[Any], dict[str, torch.Tensor]]:
    """Pictures so large that batch norms see more than two values, whose variances are mostly rounding."""
    return lambda config: {"pixel_values": torch.randn(2, 3, side, side)}


#: Kind of model → its inputs.
SPECIAL_INPUTS: Final[Mapping[str, Callable[[Any], dict[str, torch.Tensor]]]] = {
    "switch_transformers": _with_mask,
    "longt5": _with_mask,
    **dict.fromkeys(("autoformer", "informer", "time_series_transformer"), _series),
    **dict.fromkeys(("patchtst", "patchtsmixer"), _patched_series),
    **dict.fromkeys(("timesfm", "timesfm2_5"), _forecast),
    **dict.fromkeys(("xclip", "tvp"), _clips),
    **dict.fromkeys(("pe_video", "videoprism"), _videos),
    **dict.fromkeys(("blip-2", "instructblip", "instructblipvideo"), _image_and_text),
    **dict.fromkeys(("efficientloftr", "lightglue"), _pairs),
    "decision_transformer": _trajectories,
    "qwen3_asr_encoder": _windows,
    "granite_speech5_encoder": _stacked,
    "granite_speech5_ctc": _stacked,
    "oneformer": _with_task,
    "kyutai_speech_to_text": _steps_of_codes,
    "lxmert": _regions,
    "blip_2_qformer": _queries,
    "kosmos-2": _grounded,
    "pix2struct": _flat_patches,
    "seggpt": _prompted,
    "gemma4_vision": _placed_patches,
    "gemma3n_audio": _spectrum,
    "dia": _codes,
    "pi0": _robot,
    "muse_glimmer_assistant": _noised,
    "idefics": _interleaved,
    "vibevoice_acoustic_tokenizer_encoder": _channel_first(1),
    "vibevoice_acoustic_tokenizer_decoder": _channel_first(0),
    "xcodec": _mono,
    "paligemma": _prefixed,
    **dict.fromkeys(("pp_lcnet_v3", "hgnet_v2"), _pictures(128)),
}
