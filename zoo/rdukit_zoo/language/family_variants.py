"""Published sizes of the families, one or two of each, with their exact numbers of parameters."""

from collections.abc import Mapping
from typing import Final

from rdukit_zoo.registry import SizeValue, Variant


def _sizes(
    family: str, width: int, layers: int, heads: int, groups: int, feed_forward: int, vocabulary: int,
    context_length: int, **others: SizeValue,
) -> dict[str, SizeValue]:  # fmt: skip
    return {
        "family": family, "width": width, "layers": layers, "heads": heads, "key_value_heads": groups,
        "feed_forward": feed_forward, "vocabulary": vocabulary, "context_length": context_length, **others,
    }  # fmt: skip


VARIANTS: Final[Mapping[str, Variant]] = {
    "qwen2.5-0.5b": Variant(_sizes("qwen2", 896, 24, 14, 2, 4864, 151936, 32768, rotary_base=1e6), 494_032_768),
    "qwen3-0.6b": Variant(
        _sizes("qwen3", 1024, 28, 16, 8, 3072, 151936, 40960, head_width=128, rotary_base=1e6), 596_049_920
    ),
    "qwen3-8b": Variant(
        _sizes("qwen3", 4096, 36, 32, 8, 12288, 151936, 40960, is_tied=False, rotary_base=1e6), 8_190_735_360
    ),
    "gemma-2b": Variant(_sizes("gemma", 2048, 18, 8, 1, 16384, 256000, 8192, head_width=256), 2_506_172_416),
    "gemma-2-2b": Variant(
        _sizes(
            "gemma2", 2304, 26, 8, 4, 9216, 256000, 8192, head_width=256, window=4096, window_layers="10" * 13,
            attention_cap=50.0, logit_cap=30.0,
        ),
        2_614_341_888,
    ),
    "gemma-3-1b": Variant(
        _sizes(
            "gemma3", 1152, 26, 4, 1, 6912, 262144, 32768, head_width=256, window=512,
            window_layers="111110" * 4 + "11", rotary_base=1e6, local_rotary_base=1e4,
        ),
        999_885_952,
    ),
    "phi-3-mini-4k": Variant(
        _sizes("phi3", 3072, 32, 32, 32, 8192, 32064, 4096, is_tied=False, window=2047), 3_821_079_552
    ),
    "phi-4": Variant(
        _sizes("phi3", 5120, 40, 40, 10, 17920, 100352, 16384, is_tied=False, rotary_base=250000.0), 14_659_507_200
    ),
    "smollm3-3b": Variant(
        _sizes("smollm3", 2048, 36, 16, 4, 11008, 128256, 65536, rotary_base=5e6, rotary_layers="1110" * 9),
        3_075_098_624,
    ),
    "olmo-2-1b": Variant(
        _sizes("olmo2", 2048, 16, 16, 16, 8192, 100352, 4096, is_tied=False, epsilon=1e-6, rotary_base=5e5),
        1_484_916_736,
    ),
    "granite-3.1-2b": Variant(
        _sizes(
            "granite", 2048, 40, 32, 8, 8192, 49155, 131072, epsilon=1e-5, rotary_base=5e6, attention_scale=1 / 64,
            embedding_scale=12.0, residual_scale=0.22, logit_scale=1 / 8,
        ),
        2_533_531_648,
    ),
    "starcoder2-3b": Variant(
        _sizes("starcoder2", 3072, 30, 24, 2, 12288, 49152, 16384, window=4096, rotary_base=999999.4420358813),
        3_030_371_328,
    ),
    "mixtral-8x7b": Variant(
        _sizes("mixtral", 4096, 32, 32, 8, 14336, 32000, 32768, is_tied=False, experts=8), 46_702_792_704
    ),
    "opt-125m": Variant(_sizes("opt", 768, 12, 12, 12, 3072, 50272, 2048), 125_239_296),
    "opt-350m": Variant(
        _sizes("opt", 1024, 24, 16, 16, 4096, 50272, 2048, embedding_width=512, placement="sums"), 331_196_416
    ),
    "phi-2": Variant(
        _sizes("phi", 2560, 32, 32, 32, 10240, 51200, 2048, is_tied=False, rotary_share=0.4), 2_779_683_840
    ),
    "command-r": Variant(
        _sizes("cohere", 8192, 40, 64, 64, 22528, 256000, 8192, logit_scale=0.0625, rotary_base=8e6), 34_980_831_232
    ),
    "deepseek-v2-lite": Variant(
        _sizes(
            "deepseek_v2", 2048, 27, 16, 0, 10944, 102400, 163840, is_tied=False, head_width=128, latent=512,
            rotated_width=64, value_width=128, experts=64, experts_per_token=6, expert_feed_forward=1408,
            shared_experts=2, expert_layers="0" + "1" * 26, normalizes_experts=False, rotary_all_scale=0.707,
            rotary_kind="yarn", rotary_factor=40.0, rotary_high_factor=32.0, rotary_original_length=4096,
            rotary_attention_factor=1.0,
        ),
        15_706_484_224,
    ),
    "gpt-oss-20b": Variant(
        _sizes(
            "gpt_oss", 2880, 24, 64, 8, 2880, 201088, 131072, is_tied=False, head_width=64, window=128,
            window_layers="10" * 12, experts=32, experts_per_token=4, rotary_kind="yarn", rotary_factor=32.0,
            rotary_high_factor=32.0, rotary_original_length=4096, rotary_truncates=False,
        ),
        20_914_757_184,
    ),
}  # fmt: skip
