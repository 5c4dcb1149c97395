"""Decoders by family: what sizes and configurations are refused, and that the table is whole."""

from pathlib import Path
from typing import Any

import pytest
import torch

from rdukit.errors import InvalidArgument
from rdukit_modelbox.contract.box import find_box_file, load_box
from rdukit_modelbox.tasks.adapters import add_adapters
from rdukit_serving.device.parameters import merge_adapters
from rdukit_zoo.checkpoints.folder import load_hub_folder, models_of, save_hub_folder
from rdukit_zoo.language.families import FAMILIES
from rdukit_zoo.language.family_configs import config_of_sizes, sizes_of_config
from rdukit_zoo.language.family_sizes import FamilySizes
from rdukit_zoo.language.family_variants import VARIANTS
from rdukit_zoo.registry import get_model
from support import shows

pytestmark = shows("decoder", "zoo", "huggingface")

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"], "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 48, "vocab_size": 90, "max_position_embeddings": 64,
}  # fmt: skip
_GROUPS = {"family": "deepseek_v3", "experts": 8, "expert_groups_chosen": 2, "key_value_heads": 0}
LONG = {"rope_type": "longrope", "original_max_position_embeddings": 64}


def test_the_box_has_each_family_and_each_has_a_published_size() -> None:
    (parameter,) = [each for each in load_box(find_box_file("decoder")).parameters if each.name == "family"]
    assert parameter.legal is not None
    assert parameter.legal.enum == tuple(FAMILIES)
    shown = {str(variant.sizes["family"]) for variant in VARIANTS.values()}
    assert set(FAMILIES) - shown == {"llama", "mistral", "qwen3_moe", "deepseek_v3"}


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"family": "qwen9"}, "family is 'qwen9'; expected one of 'llama'"),
        ({"family": "mixtral"}, "experts is 0 with family 'mixtral'; expected 1 or more"),
        ({"experts": 4}, "expected 0: this family has none"),
        ({"family": "mixtral", "experts": 2, "experts_per_token": 3}, "expected 1 <= x <= 2"),
        ({"window_layers": "1"}, "window_layers is '1'; expected '' or 2 digits"),
        ({"biases": "qkv,norms"}, "expected 'family', or some of qkv,output,feed_forward,head"),
        ({"head_norms": "some"}, "head_norms is 'some'; expected one of 'family', 'none'"),
        ({"family": "phi", "rotary_share": 0.3, "head_width": 10}, "3 of a head's 10 elements are rotated"),
        ({"rotary_kind": "dynamic", "rotary_original_length": 64}, "context of 128 tokens .* expected at most 64"),
        ({"family": "opt", "positions": 64}, r"context_length is 128; expected at most 64 \(positions\)"),
        ({**_GROUPS, "expert_groups": 3}, "2 of 3 expert_groups and 8 experts; expected 1 <= expert_groups_chosen"),
        ({**_GROUPS, "expert_groups": 8}, "groups of two or more, with at least as many experts together"),
        ({**_GROUPS, "expert_groups": 4, "experts_per_token": 5}, "5 experts_per_token of 2 groups with 2 experts"),
        ({**_GROUPS, "rotated_width": 5}, "5 of a head's 16 elements are rotated"),
        ({"heads": 3, "width": 48}, "heads 3 is not a multiple of key_value_heads 2"),
    ],
)
def test_sizes_that_do_not_fit_together_are_refused(sizes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        FamilySizes(**sizes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layer_types": ["linear_attention"] * 4}, "layer_types has linear_attention; expected full_attention only"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5; this model has 1.0 only"),
        ({"architectures": ["GemmaForCausalLM"], "use_bidirectional_attention": "all"}, "this model has None only"),
        (
            {"architectures": ["Gemma3ForCausalLM"], "rope_parameters": {
                "sliding_attention": {"rope_type": "linear", "factor": 2.0}, "full_attention": {},
            }},
            "the windows' rope_type is 'linear'",
        ),
        (
            {"architectures": ["DeepseekV2ForCausalLM"], "topk_method": "noaux_tc"},
            "topk_method is 'noaux_tc'; this model has 'group_limited_greedy' only",
        ),
        (
            {"architectures": ["DeepseekV3ForCausalLM"], "scoring_func": "softmax", "n_group": 1, "topk_group": 1},
            "scoring_func is 'softmax'; this model has 'sigmoid' only",
        ),
        ({"hidden_act": "tanh"}, "activation is 'tanh'; expected one of '', 'silu'"),
    ],
)  # fmt: skip
def test_what_a_configuration_asks_for_and_is_not_computed_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        sizes_of_config({**CONFIG, **changes})


def test_windows_by_layer_are_those_of_the_family() -> None:
    def marks(architecture: str, **changes: Any) -> object:
        found = sizes_of_config({**CONFIG, "architectures": [architecture], "sliding_window": 8, **changes})
        return found["window"], found["window_layers"]

    assert marks("Qwen2ForCausalLM") == (0, "")
    assert marks("Qwen2ForCausalLM", use_sliding_window=True, max_window_layers=3) == (8, "0001")
    assert marks("Gemma2ForCausalLM") == (8, "1010")
    assert marks("Gemma3ForCausalLM", sliding_window_pattern=3) == (8, "1101")
    assert marks("Phi3ForCausalLM") == (8, "")


def test_the_published_configuration_of_deepseek_v3_is_read() -> None:
    found = sizes_of_config({
        "architectures": ["DeepseekV3ForCausalLM"], "first_k_dense_replace": 3, "hidden_size": 7168,
        "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840, "moe_layer_freq": 1,
        "moe_intermediate_size": 2048, "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1,
        "norm_topk_prob": True, "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61,
        "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000, "routed_scaling_factor": 2.5,
        "rope_scaling": {
            "type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1,
            "mscale": 1.0, "mscale_all_dim": 1.0,
        },
        "scoring_func": "sigmoid", "tie_word_embeddings": False, "topk_group": 4, "topk_method": "noaux_tc",
        "v_head_dim": 128, "vocab_size": 129280,
    })  # fmt: skip
    known = FamilySizes.from_values(found)
    assert (known.rotated, known.width_of_key, known.latent, known.query_latent) == (64, 192, 512, 1536)
    assert (known.expert_groups, known.expert_groups_chosen, known.expert_scale) == (8, 4, 2.5)
    assert known.expert_layers == "000" + "1" * 58
    assert (known.rotary_attention_factor, known.rotary_all_scale) == (1.0, 1.0)
    assert sizes_of_config(config_of_sizes(found)) == found


def test_long_contexts_take_the_long_divisors() -> None:
    sizes = {"rotary_kind": "longrope", "rotary_original_length": 64, "rotary_short": "1,2", "rotary_long": "3,4"}
    sizes |= {"width": 16, "heads": 4, "family": "phi3"}
    for context, divisors in ((64, [1.0, 2.0]), (65, [3.0, 4.0])):
        scaling = FamilySizes(**sizes, context_length=context).rotary_scaling()  # type: ignore[arg-type]
        assert scaling._divisors(2, context).tolist() == divisors
    with pytest.raises(InvalidArgument, match="expected 8 positive numbers"):
        scaling._divisors(8, 64)


def test_a_size_that_the_familys_configurations_cannot_say_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"family 'qwen3' cannot say logit_cap 5.0; expected the family's"):
        config_of_sizes({"logit_cap": 5.0})


@pytest.mark.parametrize(
    ("asked", "nearest"),
    [
        ("Qwen3NextForCausalLM", "Qwen3ForCausalLM"),
        ("GraniteMoeForCausalLM", "GraniteForCausalLM"),
        ("Olmo3ForCausalLM", "Olmo2ForCausalLM"),
        ("Gemma3ForConditionalGeneration", "Gemma3ForCausalLM"),
    ],
)
def test_an_architecture_that_is_not_covered_is_answered_with_the_nearest(asked: str, nearest: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"the nearest known architecture is {nearest}; expected one of"):
        models_of([asked], Path("config.json"))


@pytest.mark.parametrize("family", ["deepseek_v3", "gpt_oss"])
def test_an_adapter_counts_as_weights_into_which_it_is_merged(family: str) -> None:
    entry = get_model("decoder")
    sizes = {**entry.sizes, "family": family, "experts": 4, "key_value_heads": 4, "context_length": 16}
    sizes["prompt_length"] = 8
    torch.manual_seed(2)
    adapted: Any = entry.build(**sizes).eval()
    add_adapters(adapted, 2, 4.0, 512)
    for name, parameter in adapted.named_parameters():
        if name.endswith("lora_B"):
            torch.nn.init.normal_(parameter, std=0.2)
    merged: Any = entry.build(**sizes).eval()
    merged.load_state_dict(merge_adapters(adapted.state_dict()))
    tokens = torch.randint(512, (2, 16))
    torch.testing.assert_close(adapted.logits(tokens), merged.logits(tokens), rtol=1e-5, atol=1e-5)
    adapted(tokens, tokens).backward()
    trained = {name for name, parameter in adapted.named_parameters() if parameter.grad is not None}
    assert trained and all(name.endswith(("lora_A", "lora_B")) for name in trained)


def test_the_bias_that_experts_are_chosen_by_is_not_rounded(tmp_path: Path) -> None:
    entry = get_model("decoder")
    sizes = {**entry.sizes, "family": "deepseek_v3", "experts": 4, "key_value_heads": 0}
    torch.manual_seed(0)
    model: Any = entry.build(**sizes).bfloat16()
    name = "model.layers.0.mlp.gate.e_score_correction_bias"
    model.get_submodule(name.rpartition(".")[0]).e_score_correction_bias = torch.randn(4)
    save_hub_folder(model, entry, sizes, tmp_path)
    found: Any = load_hub_folder(tmp_path)
    assert found.get_parameter("lm_head.weight").dtype == torch.bfloat16
    assert torch.equal(found.get_buffer(name), model.get_buffer(name))
    tokens = torch.arange(6)[None]
    assert torch.equal(found.logits(tokens), model.logits(tokens))
