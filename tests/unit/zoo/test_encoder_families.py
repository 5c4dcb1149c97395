"""Encoders by family: what sizes, configurations and steps of sentence-transformers are refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rdukit.errors import InvalidArgument
from rdukit_zoo.checkpoints.folder import open_hub_folder
from rdukit_zoo.checkpoints.sentence_modules import pooling_of_folder
from rdukit_zoo.language.encoder_configs import sizes_of_config
from rdukit_zoo.language.encoder_sizes import BertSizes
from rdukit_zoo.language.encoders import pool_states
from support import shows

pytestmark = shows("bert-embedder", "bert-classifier", "zoo", "huggingface")

CONFIG: dict[str, Any] = {
    "architectures": ["ModernBertModel"], "model_type": "modernbert", "hidden_size": 32, "num_hidden_layers": 4,
    "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 90, "max_position_embeddings": 64,
}  # fmt: skip
TRANSFORMER = {"path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}


def write_steps(folder: Path, steps: list[Any], pooling: dict[str, Any]) -> None:
    (folder / "modules.json").write_text(json.dumps(steps))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"family": "electra"}, "family is 'electra'; expected one of bert, roberta"),
        ({"pooling": "median"}, "pooling is 'median'; expected one of mean, first"),
        ({"window_layers": "1"}, "window_layers is '1'; expected '' or 2 digits"),
        ({"family": "roberta", "padding": 512}, "padding is 512; expected a token's number, 0 <= x < 512"),
        ({"positions": 64}, "context_length is 128; expected up to 64"),
    ],
)
def test_sizes_that_do_not_fit_together_are_refused(sizes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        BertSizes(**sizes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"norm_bias": True}, "norm_bias is True; this model has False only"),
        ({"hidden_activation": "relu"}, "hidden_activation is 'relu'"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types has 3; expected 4 of sliding_attention"),
        ({"layer_types": ["linear_attention"] * 4}, "layer_types has linear_attention"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "rope_type is 'yarn'"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, "rope_parameters has 'rope_type'; expected"),
        ({"local_attention": 1}, "local_attention is 1; expected 2 or more tokens"),
        ({"classifier_pooling": "max"}, "classifier_pooling is 'max'; expected 'cls' or 'mean'"),
        ({"architectures": ["MPNetModel"], "relative_attention_num_buckets": 16}, "this model has 32 only"),
        ({"architectures": ["RobertaModel"], "hidden_act": "relu"}, "hidden_act is 'relu'"),
        ({"architectures": ["ElectraModel"]}, "no family of encoders has an architecture of"),
    ],
)
def test_what_a_configuration_asks_for_and_is_not_computed_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        sizes_of_config({**CONFIG, **changes})


def test_positions_are_counted_behind_the_padding_token() -> None:
    found = sizes_of_config({**CONFIG, "architectures": ["XLMRobertaModel"], "pad_token_id": 1})
    assert (found["positions"], found["padding"], found["family"]) == (62, 1, "xlm-roberta")
    assert sizes_of_config(CONFIG)["window_layers"] == "0110"


@pytest.mark.parametrize(
    ("pooling", "wanted"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "first"),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": ["mean"]}, "mean"),
    ],
)
def test_the_pooling_that_a_folder_states_is_a_size(pooling: dict[str, Any], wanted: str, tmp_path: Path) -> None:
    write_steps(tmp_path, [TRANSFORMER, POOLING], pooling)
    assert pooling_of_folder(tmp_path) == {"pooling": wanted, "normalizes": False}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_largest_state_is_one_of_a_token_in_each_dtype(dtype: torch.dtype) -> None:
    states = torch.tensor([[[-2.0], [-1.0], [5.0]]], dtype=dtype)
    vectors = pool_states(BertSizes(pooling="max"), states, torch.tensor([[0.5, 0.5, 0.0]], dtype=dtype))
    assert vectors.tolist() == [[-1.0]]


def test_a_folder_of_vectors_is_one_whatever_head_its_configuration_names(tmp_path: Path) -> None:
    write_steps(tmp_path, [TRANSFORMER, POOLING, {"path": "2_Normalize", "type": "x.Normalize"}], {
        "pooling_mode_mean_tokens": True,
    })  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "architectures": ["MPNetForMaskedLM"]}))
    found = open_hub_folder(tmp_path)
    assert (found.entry.name, found.sizes["family"], found.sizes["normalizes"]) == ("bert_embedder", "mpnet", True)


@pytest.mark.parametrize(
    ("steps", "pooling", "words"),
    [
        ([TRANSFORMER], {}, "the modules are Transformer; expected Transformer, Pooling"),
        ([TRANSFORMER, POOLING, {"path": "2", "type": "x.Dense"}], {}, "Transformer, Pooling, Dense; expected"),
        ([TRANSFORMER, {**POOLING, "path": "../1_Pooling"}], {}, "expected the name of a folder within this one"),
        ([TRANSFORMER, {**POOLING, "path": ".."}], {}, "path is '..'; expected the name of a folder within this one"),
        (["Transformer"], {}, "expected objects with type and path, found 'Transformer'"),
        ({}, {}, "expected a JSON array"),
        ([TRANSFORMER, POOLING], {}, "the poolings are none; expected exactly one of"),
        (
            [TRANSFORMER, POOLING], {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
            "the poolings are first, mean; expected exactly one",
        ),
        ([TRANSFORMER, POOLING], {"pooling_mode": "attention"}, "the poolings are attention"),
    ],
)  # fmt: skip
def test_steps_that_are_not_computed_are_refused(steps: Any, pooling: Any, words: str, tmp_path: Path) -> None:
    write_steps(tmp_path, steps, pooling)
    with pytest.raises(InvalidArgument, match=words):
        pooling_of_folder(tmp_path)


def test_files_that_are_nested_too_deep_are_refused(tmp_path: Path) -> None:
    for name, read in (("modules.json", pooling_of_folder), ("config.json", open_hub_folder)):
        (tmp_path / name).write_text("[" * 200_000)
        with pytest.raises(InvalidArgument, match=f"{name} is .*damaged"):
            read(tmp_path)


@pytest.mark.parametrize(
    ("name", "about", "words"),
    [
        (
            "config_sentence_transformers.json", {"prompts": {"query": "ask: "}, "default_prompt_name": "query"},
            "expected null: write the prompt 'ask: ' into the texts instead",
        ),
        ("sentence_bert_config.json", {"do_lower_case": True}, "do_lower_case is true, and tokenizer.json keeps"),
        ("sentence_bert_config.json", [], "expected a JSON object"),
    ],
)  # fmt: skip
def test_what_changes_texts_before_they_are_tokens_is_refused(
    name: str, about: Any, words: str, tmp_path: Path
) -> None:
    write_steps(tmp_path, [TRANSFORMER, POOLING], {"pooling_mode_mean_tokens": True})
    (tmp_path / name).write_text(json.dumps(about))
    with pytest.raises(InvalidArgument, match=words):
        pooling_of_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"normalizer": {"type": "BertNormalizer", "lowercase": True}}))
    if "lower" in words:
        assert pooling_of_folder(tmp_path)["pooling"] == "mean"


def test_a_decoder_refuses_a_pooling_that_its_vectors_do_not_have(tmp_path: Path) -> None:
    write_steps(tmp_path, [TRANSFORMER, POOLING], {"pooling_mode_lasttoken": True})
    about = {**CONFIG, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
    (tmp_path / "config.json").write_text(json.dumps(about))
    with pytest.raises(InvalidArgument, match=r"vectors of decoder are the means .* expected mean_tokens without"):
        open_hub_folder(tmp_path)
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    assert open_hub_folder(tmp_path).entry.name == "decoder"
