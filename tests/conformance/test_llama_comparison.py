"""The Llama of the comparisons: a multigraph program with caches in device memory generates what plain torch does."""

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from rdukit_bench.comparisons.llama_contestants import LlamaProgram
from rdukit_bench.comparisons.llama_cpp_peer import LlamaCpp, find_missing_package, write_gguf

from rdukit_runtime.engine.quantized_weights import WEIGHT_FORMATS
from rdukit_zoo.language.decoder import generate_by_recomputing
from rdukit_zoo.language.llama import Llama, LlamaSizes
from support import shows

pytestmark = shows("bench", "llama", "precision", "inference", "o0", "o1", "o3")

SIZES = LlamaSizes(
    width=64, layers=2, heads=4, key_value_heads=4, feed_forward=96, vocabulary=97, context_length=32, prompt_length=7
)


def make_model(sizes: LlamaSizes = SIZES) -> Llama:
    """Weights so large that the text does not repeat itself."""
    torch.manual_seed(3)
    model = Llama(sizes, texts=1).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    return model


@pytest.fixture
def program(request: pytest.FixtureRequest) -> Iterator[tuple[Llama, LlamaProgram]]:
    model = make_model()
    made = LlamaProgram(copy.deepcopy(model), SIZES, {"log_level": "error", "num_tiles": 1, **request.param})
    yield model, made
    made.close()


@pytest.mark.parametrize("program", [{mode: True, "precision": "f32"} for mode in ("o0", "o1", "o3")], indirect=True)
def test_greedy_generation_equals_plain_torch_that_computes_everything_again(
    program: tuple[Llama, LlamaProgram],
) -> None:
    model, ours = program
    for seed in (1, 2):  # the second text overwrites the caches of the first
        torch.manual_seed(seed)
        prompt = torch.randint(SIZES.vocabulary, (1, SIZES.prompt_length))
        gold = generate_by_recomputing(model, prompt, 12)
        assert len(set(gold)) > 3
        assert ours.generate(prompt, 12) == gold


@pytest.mark.parametrize("program", [{"o3": True, "precision": "f32", "weight_dtype": "int4"}], indirect=True)
def test_weights_of_four_bits_generate_what_plain_torch_does_with_the_numbers_that_they_stand_for(
    program: tuple[Llama, LlamaProgram],
) -> None:
    model, ours = program
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                kind = WEIGHT_FORMATS["int8" if "embed_tokens" in name else "uint8"]
                weight.copy_(kind.dequantize(*kind.quantize(weight)))
    torch.manual_seed(1)
    prompt = torch.randint(SIZES.vocabulary, (1, SIZES.prompt_length))
    gold = generate_by_recomputing(model, prompt, 12)
    assert len(set(gold)) > 3
    assert ours.generate(prompt, 12) == gold
    dtypes = [symbol.dtype for symbol in ours.session._loaded().pef.symbols.values() if symbol.scale]
    assert sorted(dtypes) == ["int8"] + ["uint8"] * 14


# As a share of the largest logit: two layers of bf16 with 8 bits; llama.cpp's q8_0 is 8e-2 off for this model.
@pytest.mark.long
@pytest.mark.parametrize(
    ("program", "tolerance"),
    [
        ({"o3": True, "precision": "bf16"}, 5e-2),
        ({"o3": True, "precision": "bf16", "weight_dtype": "int8"}, 1e-1),
    ],
    indirect=["program"],
)
def test_in_bf16_the_caches_are_bf16_and_logits_stay_near(
    program: tuple[Llama, LlamaProgram], tolerance: float
) -> None:
    model, ours = program
    prompt, token = torch.randint(97, (1, SIZES.prompt_length)), torch.randint(97, (1, 1))
    position = torch.tensor([SIZES.prompt_length])
    with torch.no_grad():
        gold = [model(prompt), model(torch.cat([prompt, token], 1))]
    for found, wanted in zip([ours.prefill(prompt), ours.decode(token, position)], gold, strict=True):
        assert float((found - wanted).abs().max() / wanted.abs().max()) < tolerance
    symbols = ours.session._loaded().pef.symbols
    caches = [s.dtype for s in symbols.values() if s.name.endswith(("attention__keys", "attention__values"))]
    assert caches == ["bfloat16"] * 4


def test_two_programs_run_side_by_side_in_one_process() -> None:
    model, other = make_model(), make_model()
    torch.nn.init.normal_(other.model.embed_tokens.weight, std=0.3)
    config = {"o3": True, "precision": "f32", "log_level": "error", "num_tiles": 1}
    pair = [
        LlamaProgram(copy.deepcopy(m), SIZES, {**config, "pef_name": f"p{i}"}) for i, m in enumerate((model, other))
    ]
    prompt = torch.randint(SIZES.vocabulary, (1, SIZES.prompt_length))
    try:
        found = [program.prefill(prompt) for program in pair]
        with torch.no_grad():
            torch.testing.assert_close(found, [model(prompt), other(prompt)], rtol=1e-4, atol=1e-4)
    finally:
        for program in pair:
            program.close()


@pytest.mark.skipif(find_missing_package() is not None, reason="llama.cpp is not installed: pip install rdukit[bench]")
def test_llama_cpp_gives_our_logits_from_the_same_weights(tmp_path: Path) -> None:
    sizes = LlamaSizes(
        width=64, layers=2, heads=4, key_value_heads=4, feed_forward=128, vocabulary=128, context_length=64,
        prompt_length=16,
    )  # fmt: skip
    model = make_model(sizes)
    prompt, token = torch.randint(128, (1, 16)), torch.randint(128, (1, 1))
    with torch.no_grad():
        gold = [model(prompt), model(torch.cat([prompt, token], 1))]
    # As a share of the largest logit; bf16 has 8 bits, q8_0 rounds weights and activations to 8.
    for weights, tolerance in (("f32", 1e-4), ("bf16", 5e-2), ("q8_0", 1e-1)):
        write_gguf(model, sizes, tmp_path / weights, weights)
        peer = LlamaCpp(tmp_path / weights, sizes, threads=1, is_exact=weights == "f32")
        for found, wanted in zip([peer.prefill(prompt), peer.decode(token, 16)], gold, strict=True):
            assert float((found - wanted).abs().max() / wanted.abs().max()) < tolerance
        peer.close()
