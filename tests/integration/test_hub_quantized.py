"""Folders with fp8, AWQ, GPTQ and MXFP4 weights: logits and tokens of transformers with the same weights as numbers.

The words of AWQ and GPTQ are packed here bit by bit; transformers itself dequantizes fp8 and MXFP4. In f32: 1e-5 of the
largest logit covers sums in another order.
"""

import json
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from safetensors.torch import load_file, save_file

from rdukit.errors import InvalidArgument
from rdukit_modelbox.artifacts.hub_folder import prepare_hub_folder
from rdukit_serving.text.program import TextProgram, generate_all
from rdukit_serving.text.sampling import Sampler, SamplingOptions
from rdukit_zoo.checkpoints.folder import load_hub_folder
from support import shows

pytestmark = shows("huggingface", "hub-files", "decoder")

transformers = pytest.importorskip("transformers", reason="the extra `models` is not installed")
Fp8Dequantize = pytest.importorskip("transformers.integrations.finegrained_fp8").Fp8Dequantize
convert_moe_packed_tensors = pytest.importorskip("transformers.integrations.mxfp4").convert_moe_packed_tensors

WORDS: Final = 96
GROUP: Final = 16
_SMALL: Final[dict[str, Any]] = {
    "vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "num_key_value_heads": 2, "max_position_embeddings": 96, "bos_token_id": 0, "eos_token_id": 95, "pad_token_id": 1,
}  # fmt: skip
AWQ: Final = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}
GPTQ: Final = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True, "sym": False}


def packed(numbers: list[int], bits: int) -> int:
    """Return a signed 32-bit word with the numbers, the first in the lowest bits."""
    word = sum(number << (at * bits) for at, number in enumerate(numbers))
    return word - (1 << 32) if word >= 1 << 31 else word


def packed_rows(numbers_RC: torch.Tensor, bits: int, order: tuple[int, ...]) -> torch.Tensor:
    """Return [R, C / P] words; the n-th bits of a word hold the column ``order[n]`` of its columns."""
    count = 32 // bits
    return torch.tensor(
        [
            [packed([row[at + place] for place in order], bits) for at in range(0, len(row), count)]
            for row in numbers_RC.tolist()
        ],
        dtype=torch.int32,
    )


def quantized_awq(weight_OI: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return the parts of a random weight of this shape, and the weight."""
    outputs, inputs = weight_OI.shape
    numbers_IO, zeros_GO = torch.randint(16, (inputs, outputs)), torch.randint(16, (inputs // GROUP, outputs))
    scales_GO = (torch.rand(inputs // GROUP, outputs) * 0.05 + 0.01).half()
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    parts = {
        "qweight": packed_rows(numbers_IO, 4, order), "qzeros": packed_rows(zeros_GO, 4, order), "scales": scales_GO,
    }  # fmt: skip
    groups = [at // GROUP for at in range(inputs)]
    return parts, ((numbers_IO - zeros_GO[groups]).half() * scales_GO[groups]).t().contiguous()


def quantized_gptq(
    weight_OI: torch.Tensor, bits: int = 4, offset: int = 1
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return the parts of a random weight of this shape, whose inputs are in groups in any order, and the weight."""
    outputs, inputs = weight_OI.shape
    most = 1 << bits
    numbers_IO = torch.randint(most, (inputs, outputs))
    zeros_GO = torch.randint(1, most, (inputs // GROUP, outputs))
    scales_GO = (torch.rand(inputs // GROUP, outputs) / most + 0.01).half()
    groups_I = torch.arange(inputs)[torch.randperm(inputs)] // GROUP
    order = tuple(range(32 // bits))
    parts = {
        "qweight": packed_rows(numbers_IO.t(), bits, order).t().contiguous(),
        "qzeros": packed_rows(zeros_GO - offset, bits, order), "scales": scales_GO, "g_idx": groups_I.int(),
    }  # fmt: skip
    return parts, ((numbers_IO - zeros_GO[groups_I]).half() * scales_GO[groups_I]).t().contiguous()


def write_folder(folder: Path, quantization: dict[str, Any], quantize: Any, kind: str = "Qwen2") -> Any:
    """Write a random model in two shards, the linear layers of its layers quantized; return that of transformers."""
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(
        getattr(transformers, f"{kind}Config")(**_SMALL), attn_implementation="eager"
    ).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    stored = {}
    for name, parameter in model.state_dict().items():
        if name.endswith("proj.weight"):
            parts, numbers = quantize(parameter)
            stored |= {name.removesuffix("weight") + part: value for part, value in parts.items()}
            parameter.copy_(numbers.float())
        else:
            stored[name] = parameter.clone()
    folder.mkdir(exist_ok=True)
    write_shards(folder, stored)
    config = {**model.config.to_dict(), "architectures": [type(model).__name__], "dtype": "float32"}
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": quantization}))
    return model


def write_shards(folder: Path, stored: dict[str, torch.Tensor]) -> None:
    """Write tensors in turns to two files, so that the parts of a weight are in both."""
    files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    placed = {name: files[at % 2] for at, name in enumerate(sorted(stored))}
    for file in files:
        save_file({name: stored[name] for name in stored if placed[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))


def require_near(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5 * float(wanted.abs().max()))


CASES: Final[dict[str, tuple[dict[str, Any], Any]]] = {
    "awq": (AWQ, quantized_awq),
    "gptq": (GPTQ, quantized_gptq),
    "gptq-8-bits": ({**GPTQ, "bits": 8}, lambda weight: quantized_gptq(weight, 8)),
    "gptq-2-bits": ({**GPTQ, "bits": 2}, lambda weight: quantized_gptq(weight, 2)),
    "gptq_v2": ({**GPTQ, "checkpoint_format": "gptq_v2"}, lambda weight: quantized_gptq(weight, offset=0)),
}


@pytest.mark.parametrize("name", CASES)
def test_packed_weights_give_the_logits_of_their_numbers(name: str, tmp_path: Path) -> None:
    theirs = write_folder(tmp_path, *CASES[name])
    ours: Any = load_hub_folder(tmp_path).eval()
    tokens = torch.randint(2, WORDS, (2, 30))
    with torch.no_grad():
        require_near(ours.logits(tokens), theirs(tokens).logits)


def stored_tensors(folder: Path) -> dict[str, torch.Tensor]:
    files = {*json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"].values()}
    return {name: tensor for file in files for name, tensor in load_file(folder / file).items()}


def write_fp8(folder: Path, kind: str, block: list[int] | None) -> Any:
    """Write a model whose linear layers are in fp8, with a scale for each block, or one for all; return it."""
    plain = write_folder(folder, {}, lambda weight: ({"weight": weight.clone()}, weight))
    stored = {}
    for name, tensor in plain.state_dict().items():
        stored[name] = tensor.clone()
        if name.endswith("proj.weight"):
            stored[name] = tensor.to(torch.float8_e4m3fn)
            rows, columns = block or tensor.shape
            shape = (tensor.shape[0] // rows, tensor.shape[1] // columns)
            stored[f"{name}_scale_inv"] = torch.rand(shape) + 0.5
    write_shards(folder, stored)
    config = json.loads((folder / "config.json").read_text())
    about = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": block}
    (folder / "config.json").write_text(json.dumps({**config, "dtype": kind, "quantization_config": about}))
    return plain


@pytest.mark.parametrize(
    ("kind", "block"), [("float32", [16, 16]), ("float32", [8, 16]), ("bfloat16", [16, 16]), ("float32", None)]
)
@torch.no_grad()
def test_fp8_weights_are_those_that_transformers_dequantizes(
    kind: str, block: list[int] | None, tmp_path: Path
) -> None:
    theirs = write_fp8(tmp_path, kind, block)
    stored = stored_tensors(tmp_path)
    convert = Fp8Dequantize(None).convert
    for name in [each for each in stored if each.endswith("proj.weight")]:
        wanted = convert({"weight": stored[name], "weight_scale_inv": stored[f"{name}_scale_inv"]})["weight"]
        theirs.get_parameter(name).copy_(wanted.to(getattr(torch, kind)).float())
    ours: Any = load_hub_folder(tmp_path).eval()
    for name, parameter in ours.named_parameters():
        assert torch.equal(parameter.float(), theirs.get_parameter(name)), name
    tokens = torch.randint(2, WORDS, (2, 30))
    require_near(ours.float().logits(tokens), theirs(tokens).logits)


def test_fp8_blocks_at_the_edge_may_be_smaller(tmp_path: Path) -> None:
    write_fp8(tmp_path, "float32", [16, 16])
    whole: Any = load_hub_folder(tmp_path)
    stored = stored_tensors(tmp_path)
    name = "model.layers.0.mlp.down_proj.weight"
    stored[f"{name}_scale_inv"] = torch.tensor([[2.0, 3.0]])
    stored = {
        key: value for key, value in stored.items() if not key.endswith("_scale_inv") or key == f"{name}_scale_inv"
    }
    write_shards(
        tmp_path, {key: part if key == name or part.itemsize > 1 else part.float() for key, part in stored.items()}
    )
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"]["weight_block_size"] = [128, 32]
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = load_hub_folder(tmp_path).get_parameter(name)
    assert whole.get_parameter(name).shape == found.shape == (32, 48)
    wanted = stored[name].float() * torch.tensor([2.0] * 32 + [3.0] * 16)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


@torch.no_grad()
def test_mxfp4_experts_are_those_that_transformers_unpacks(tmp_path: Path) -> None:
    torch.manual_seed(3)
    config = transformers.GptOssConfig(
        **{**_SMALL, "intermediate_size": 64}, head_dim=16, num_local_experts=4, num_experts_per_tok=2,
        sliding_window=6,
    )  # fmt: skip
    theirs = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    stored = {}
    for name, parameter in theirs.named_parameters():
        torch.nn.init.normal_(parameter, std=0.2)
        if name.endswith(("gate_up_proj", "down_proj")):
            experts, inputs, outputs = parameter.shape
            blocks = torch.randint(256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8)
            scales = torch.randint(121, 126, blocks.shape[:-1], dtype=torch.uint8)
            stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
            parameter.copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
        else:
            stored[name] = parameter.clone()
    write_shards(tmp_path, stored)
    about = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    written = {**config.to_dict(), "architectures": ["GptOssForCausalLM"], "dtype": "float32"}
    (tmp_path / "config.json").write_text(json.dumps({**written, "quantization_config": about}))
    ours: Any = load_hub_folder(tmp_path).eval()
    for name, parameter in theirs.named_parameters():
        assert torch.equal(ours.get_parameter(name), parameter), name
    tokens = torch.randint(2, WORDS, (2, 30))
    require_near(ours.logits(tokens), theirs(tokens).logits)
    stored["model.layers.0.mlp.experts.down_proj_scales"] = torch.ones(4, 32, 1, dtype=torch.uint8)
    write_shards(tmp_path, stored)
    with pytest.raises(InvalidArgument, match=r"down_proj: blocks are expected as bytes .*_blocks \[4, 32, 2, 16\]"):
        load_hub_folder(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bits": 3}, "3 bits; expected one of 4 with awq"),
        ({"version": "gemv"}, "format 'gemv'; expected gemm or awq"),
        ({"zero_point": False}, "zero_point false; expected true"),
        ({"quant_method": "gptq", "bits": 3}, "3 bits; expected one of 2, 4, 8 with gptq"),
        ({"quant_method": "gptq", "version": None, "checkpoint_format": "marlin"}, "format 'marlin'; expected gptq"),
        ({"quant_method": "fp8", "weight_block_size": [16]}, "weight_block_size is .16.; expected two"),
        ({"quant_method": "fp8", "weight_block_size": 16}, "weight_block_size is 16; expected two"),
    ],
)
def test_what_is_not_dequantized_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    write_folder(tmp_path, {**AWQ, **changes}, quantized_awq)
    with pytest.raises(InvalidArgument, match=words):
        load_hub_folder(tmp_path)


def test_parts_that_do_not_fit_are_refused_by_the_name_of_their_weight(tmp_path: Path) -> None:
    name = "model.layers.1.mlp.up_proj"

    def refuse(words: str, how: dict[str, Any], quantize: Any, **changes: torch.Tensor | None) -> None:
        write_folder(tmp_path, how, quantize)
        stored = stored_tensors(tmp_path)
        for part, value in changes.items():
            stored.pop(f"{name}.{part}")
            if value is not None:
                stored[f"{name}.{part}"] = value
        write_shards(tmp_path, stored)
        with pytest.raises(InvalidArgument, match=rf"{name}\.weight.*{words}"):
            load_hub_folder(tmp_path)

    refuse("lacks its part '.scales'", AWQ, quantized_awq, scales=None)
    refuse("do not fit together", AWQ, quantized_awq, scales=torch.ones(2, 40).half())
    refuse("expected in int32", AWQ, quantized_awq, qweight=torch.ones(32, 6))
    refuse("from 0 to 1, one for each of 32", GPTQ, quantized_gptq, g_idx=torch.full((32,), 2, dtype=torch.int32))
    refuse("the parts are", AWQ, quantized_awq, qweight=torch.ones(6, dtype=torch.int32))
    refuse("the parts are", GPTQ, quantized_gptq, qweight=torch.ones(2, 2, 2, dtype=torch.int32))


@pytest.mark.long
@pytest.mark.parametrize("name", ["awq", "gptq"])
def test_a_quantized_folder_is_served_with_the_tokens_of_transformers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    theirs = write_folder(tmp_path / "theirs", *CASES[name], kind="Llama")
    made = prepare_hub_folder(tmp_path / "theirs", tmp_path / "cache", context=96, precision="f32")
    with TextProgram(Path(made.pef), Path(made.checkpoint)) as program:
        prompt = torch.randint(2, WORDS - 1, (1, 9))
        wanted = theirs.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=64, do_sample=False, eos_token_id=None
        )
        greedy = Sampler(SamplingOptions(temperature=0.0))
        ((_, found),) = generate_all(program, [(prompt[0].tolist(), greedy)], 64)
        assert found == wanted[0, 9:].tolist()
