"""Decoders of each family, as transformers wrote them: the same logits, gradients, texts and files.

In f32. 1e-5 of the largest logit, and 1e-4 of the largest gradient, cover sums in another order.
"""

from pathlib import Path
from typing import Any, Final

import pytest
import torch
from safetensors.torch import load_file

from rdukit_modelbox.artifacts.hub_folder import prepare_hub_folder
from rdukit_serving.text.program import TextProgram, generate_all
from rdukit_serving.text.sampling import Sampler, SamplingOptions
from rdukit_zoo.checkpoints.folder import load_hub_folder, open_hub_folder, save_hub_folder
from rdukit_zoo.language.families import FAMILIES
from support import shows

pytestmark = shows("huggingface", "decoder")

transformers = pytest.importorskip("transformers", reason="the extra `models` is not installed")

WORDS: Final = 97
_SMALL: Final[dict[str, Any]] = {
    "vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "num_key_value_heads": 2, "max_position_embeddings": 96, "bos_token_id": 0, "eos_token_id": 96, "pad_token_id": 1,
}  # fmt: skip
_YARN: Final = {
    "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24, "rope_theta": 10000.0,
}  # fmt: skip
_LONG: Final = {
    "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 96,
    "short_factor": [1.0, 1.5, 2.0, 3.0], "long_factor": [1.0, 4.0, 9.0, 12.0],
}  # fmt: skip
_LATENT: Final = {
    "num_key_value_heads": 4, "kv_lora_rank": 12, "q_lora_rank": 20, "qk_nope_head_dim": 10, "qk_rope_head_dim": 6,
    "v_head_dim": 14, "n_routed_experts": 4, "n_shared_experts": 1, "moe_intermediate_size": 24,
    "num_experts_per_tok": 2, "first_k_dense_replace": 1,
}  # fmt: skip
_GEMMA: Final = {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 5}

#: Family and form → its configuration class and what differs from the small sizes.
CONFIGS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "qwen2": ("Qwen2", {}),
    "qwen2-window": ("Qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    "qwen2-yarn": ("Qwen2", {"rope_parameters": _YARN, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3-bias": ("Qwen3", {"head_dim": 8, "attention_bias": True, "tie_word_embeddings": True}),
    "qwen3_moe": ("Qwen3Moe", {
        "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
        "norm_topk_prob": True, "mlp_only_layers": [1],
    }),
    "gemma": ("Gemma", {"head_dim": 16, "num_key_value_heads": 1}),
    "gemma2": ("Gemma2", {**_GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma3": ("Gemma3Text", {**_GEMMA, "layer_types": ["sliding_attention", "full_attention"]}),
    "gemma3-linear": ("Gemma3Text", {**_GEMMA, "sliding_window_pattern": 2, "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    }}),
    "phi3": ("Phi3", {"sliding_window": 7}),
    "phi3-long": ("Phi3", {"rope_parameters": _LONG, "original_max_position_embeddings": 96}),
    "phi3-share": ("Phi3", {"rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
    }}),
    "smollm3": ("SmolLM3", {"no_rope_layers": [1, 0]}),
    "olmo2": ("Olmo2", {}),
    "granite": ("Granite", {
        "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "attention_multiplier": 0.2, "logits_scaling": 7.0,
        "attention_bias": True,
    }),
    "starcoder2": ("Starcoder2", {"sliding_window": 6}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "opt": ("OPT", {"ffn_dim": 48, "dropout": 0.0}),
    "opt-350m": ("OPT", {"ffn_dim": 48, "dropout": 0.0, "do_layer_norm_before": False, "word_embed_proj_dim": 16}),
    "phi": ("Phi", {}),
    "phi-normed": ("Phi", {"qk_layernorm": True, "num_key_value_heads": 4}),
    "cohere": ("Cohere", {"logit_scale": 0.25}),
    "cohere-normed": ("Cohere", {"use_qk_norm": True}),
    "deepseek_v2": ("DeepseekV2", {**_LATENT, "q_lora_rank": None, "topk_method": "greedy", "n_shared_experts": 2}),
    "deepseek_v2-groups": ("DeepseekV2", {
        **_LATENT, "topk_method": "group_limited_greedy", "n_group": 2, "topk_group": 1, "routed_scaling_factor": 3.0,
        "rope_parameters": {**_YARN, "mscale": 0.7, "mscale_all_dim": 0.7},
    }),
    "deepseek_v3": ("DeepseekV3", {**_LATENT, "n_group": 2, "topk_group": 1, "rope_parameters": {
        **_YARN, "mscale": 1.0, "mscale_all_dim": 0.5,
    }}),
    "deepseek_v3-plain": ("DeepseekV3", {
        **_LATENT, "q_lora_rank": None, "n_group": 1, "topk_group": 1, "norm_topk_prob": False,
        "attention_bias": True, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }),
    "gpt_oss": ("GptOss", {
        "head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 6, "swiglu_limit": 0.6,
        "rope_parameters": {**_YARN, "truncate": False, "beta_fast": 32.0, "beta_slow": 1.0},
    }),
    "llama-bias": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-yarn": ("Llama", {"rope_parameters": {**_YARN, "mscale": 1.0, "mscale_all_dim": 0.5}}),
    "llama-dynamic": ("Llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}}),
    "mistral-yarn": ("Mistral", {"sliding_window": 9, "rope_parameters": _YARN}),
}  # fmt: skip


def write_folder(folder: Path, name: str, **options: Any) -> Any:
    """Write a random model's folder, and return the model of transformers."""
    torch.manual_seed(3)
    kind, differences = CONFIGS[name]
    config = getattr(transformers, f"{kind}Config")(**{**_SMALL, **differences})
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    for key, buffer in model.named_buffers():
        if key.endswith("correction_bias"):
            torch.nn.init.normal_(buffer, std=0.2)
    model.save_pretrained(folder, **options)
    return model


def stored(folder: Path) -> dict[str, torch.Tensor]:
    return {key: value for path in folder.glob("*.safetensors") for key, value in load_file(path).items()}


def require_near(found: torch.Tensor, wanted: torch.Tensor, share: float) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=share * float(wanted.detach().abs().max()))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_familys_folder_gives_transformers_logits_and_is_written_back(name: str, tmp_path: Path) -> None:
    theirs = write_folder(tmp_path / "theirs", name)
    folder = open_hub_folder(tmp_path / "theirs")
    ours: Any = load_hub_folder(tmp_path / "theirs").eval()
    tokens = torch.randint(2, WORDS, (2, 40))
    with torch.no_grad():
        wanted = theirs(tokens).logits
        require_near(ours.logits(tokens), wanted, 1e-5)
    save_hub_folder(ours, folder.entry, folder.sizes, tmp_path / "ours")
    one, other = stored(tmp_path / "theirs"), stored(tmp_path / "ours")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)
    assert open_hub_folder(tmp_path / "ours").sizes == folder.sizes
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    with torch.no_grad():
        require_near(again(tokens).logits, wanted, 1e-5)


@pytest.mark.long
@pytest.mark.parametrize("name", CONFIGS)
def test_a_familys_gradients_of_a_step_are_transformers(name: str, tmp_path: Path) -> None:
    theirs = write_folder(tmp_path, name)
    folder, ours = open_hub_folder(tmp_path), load_hub_folder(tmp_path)
    # Not 1: transformers' embeddings keep no gradient for the token of padding.
    tokens, labels = torch.randint(2, WORDS, (2, 20)), torch.randint(WORDS, (2, 20))
    loss = torch.nn.functional.cross_entropy(theirs(tokens).logits.flatten(0, 1), labels.flatten())
    loss.backward()
    found = ours(tokens, labels)
    found.backward()
    require_near(found, loss, 1e-5)
    wanted = {key: value.grad for key, value in theirs.named_parameters()}
    for key, value in split_experts(wanted).items():
        wanted[key] = value
    largest = max(float(value.abs().max()) for value in wanted.values())
    for key, parameter in ours.named_parameters():
        grad = wanted[next(each for each in (folder.hub.stored_name(key), key) if each in wanted)]
        assert parameter.grad is not None and grad is not None
        # Biases of keys change nothing behind a softmax: their gradients are rounding.
        scale = max(float(grad.abs().max()), 1e-3 * largest)
        torch.testing.assert_close(parameter.grad, grad, rtol=0, atol=1e-4 * scale)


def split_experts(gradients: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return gradients of each expert's weights, which transformers holds as one tensor of all."""
    found = {}
    for key, value in gradients.items():
        place, _, kind = key.rpartition(".")
        if place.endswith(".experts"):
            parts = ("gate_proj", "up_proj") if kind == "gate_up_proj" else ("down_proj",)
            for number, expert in enumerate(value):
                for part, grad in zip(parts, expert.chunk(len(parts)), strict=True):
                    found[f"{place}.{number}.{part}.weight"] = grad
    return found


def test_each_family_has_a_case() -> None:
    assert {name.partition("-")[0] for name in CONFIGS} == set(FAMILIES)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.mark.long
@pytest.mark.parametrize("name", CONFIGS)
def test_a_familys_folder_is_served_with_the_tokens_of_transformers(
    name: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    theirs = write_folder(tmp_path / "theirs", name)
    made = prepare_hub_folder(tmp_path / "theirs", cache, context=96, precision="f32")
    with TextProgram(Path(made.pef), Path(made.checkpoint)) as program:
        for size in (3, 12):
            prompt = torch.randint(2, WORDS - 1, (1, size))
            wanted = theirs.generate(
                prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=64, do_sample=False, eos_token_id=None
            )
            logits = torch.from_numpy(program.start(prompt[0].tolist()).copy())
            with torch.no_grad():
                require_near(logits, theirs(prompt).logits[0, -1], 1e-5)
            greedy = Sampler(SamplingOptions(temperature=0.0))
            ((_, found),) = generate_all(program, [(prompt[0].tolist(), greedy)], 64)
            assert found == wanted[0, size:].tolist()
