"""Identities of models: what changes the numbers and no shape is said by name, whatever the model."""

import json

import pytest

from rdukit.errors import InvalidArgument
from rdukit.pef.identity import (
    ModelIdentity,
    find_differences,
    identity_from_json,
    identity_in,
    metadata_of,
    require_same,
    tokenizer_digest,
)
from rdukit_zoo.registry import FREE_SIZES, SizeValue, get_model, model_names
from support import shows

pytestmark = shows("zoo", "huggingface")

#: Sizes that change the function and no shape, with another legal value and their names in messages.
SILENT: dict[str, dict[str, SizeValue]] = {
    "bert": {"heads": 2, "epsilon": 1e-5},
    "bert_classifier": {"heads": 8, "epsilon": 1e-6},
    "bert_embedder": {"heads": 2, "epsilon": 1e-5, "pooling": "max", "normalizes": True},
    "bloom": {"heads": 2, "epsilon": 1e-6},
    "decoder": {
        "family": "gemma2", "window": 16, "epsilon": 1e-5, "is_tied": False, "activation": "relu",
        "rotary_base": 5e5, "rotary_kind": "linear",
    },
    "deepvit": {"norm": "layer"},
    "falcon": {"epsilon": 1e-6, "rotary_base": 5e5},
    "gpt2": {"heads": 8},
    "llama": {
        "window": 16, "epsilon": 1e-6, "is_tied": False, "rotary_base": 5e5, "rotary_kind": "linear",
    },
    "neox": {"heads": 2, "epsilon": 1e-6, "rotary_base": 5e5, "rotary_share": 0.5, "is_parallel": False},
    "seq2seq": {
        "epsilon": 1e-5, "farthest": 64, "activation": "silu", "is_tied": False, "scales_head": False, "start": 3,
        "padding": 4,
    },
    "whisper": {"heads": 2, "decoder_heads": 2, "start": 3, "padding": 4},
    "autophasenn": {"threshold": 0.2},
    "braggnn": {"is_wide": True},
    "cosmictagger2d": {"is_residual": False},
    "dcrnn": {"diffusion": 1},
    "uno": {"has_two_drugs": False},
    "vit": {"heads": 2, "epsilon": 1e-6},
}  # fmt: skip
CASES = [(model, name, value) for model, changes in SILENT.items() for name, value in changes.items()]


@pytest.mark.parametrize(("model", "name", "value"), CASES)
def test_a_size_that_differs_is_named_with_both_values(model: str, name: str, value: SizeValue) -> None:
    entry = get_model(model)
    one, other = entry.identity({}), entry.identity({name: value})
    (found, *_) = [d for d in find_differences(one, other) if d.name.split(" ")[0] == name]
    assert found.one != found.other
    with pytest.raises(InvalidArgument, match=rf"{name}.*: .* in the checkpoint, .* in the PEF; compile it again"):
        require_same(one, other, "the checkpoint", "the PEF", "compile it again")


@pytest.mark.parametrize("model", model_names())
def test_each_size_but_the_free_ones_is_in_the_identity(model: str) -> None:
    entry = get_model(model)
    known = set(entry.identity({}).sizes)
    unused = {"rotary_factor", "rotary_low_factor", "rotary_high_factor", "rotary_original_length"}
    assert known >= set(entry.sizes) - FREE_SIZES - entry.free_sizes - unused
    assert find_differences(entry.identity({}), entry.identity({})) == ()


@pytest.mark.parametrize(
    ("model", "one", "other"),
    [
        ("llama", {"key_value_heads": 0, "head_width": 0}, {"key_value_heads": 4, "head_width": 16}),
        ("llama", {"rotary_factor": 8.0}, {"rotary_factor": 2.0}),
        ("gpt2", {"feed_forward": 0}, {"feed_forward": 256}),
        ("llama", {"context_length": 64, "prompt_length": 8}, {}),
        ("bert", {"num_classes": 3, "dropout": 0.1}, {}),
        ("unet2d", {"image_size": 128}, {}),
    ],
)
def test_sizes_that_mean_the_same_do_not_differ(
    model: str, one: dict[str, SizeValue], other: dict[str, SizeValue]
) -> None:
    entry = get_model(model)
    assert find_differences(entry.identity(one), entry.identity(other)) == ()


def test_a_head_of_its_own_is_named_as_config_json_names_it() -> None:
    entry = get_model("llama")
    (found,) = find_differences(entry.identity({"is_tied": False}), entry.identity({}))
    assert (found.name, found.one, found.other) == ("is_tied (tie_word_embeddings)", "false", "true")


def test_models_of_one_family_share_weights_and_others_do_not() -> None:
    masked, embedder, decoder = (get_model(name).identity({}) for name in ("bert", "bert_embedder", "gpt2"))
    assert find_differences(masked, embedder) == ()
    assert [d.name for d in find_differences(masked, decoder)] == ["architecture"]


def test_classes_and_tokenizers_are_compared_where_both_are_known() -> None:
    known = ModelIdentity("vit", {}, ("neg", "pos"), "abc")
    assert find_differences(known, ModelIdentity("vit")) == ()
    assert [d.name for d in find_differences(known, ModelIdentity("vit", {}, ("pos", "neg"), "abd"))] == [
        "classes", "tokenizer",
    ]  # fmt: skip


def test_an_identity_is_read_back_from_a_file_and_a_damaged_one_is_refused() -> None:
    known = ModelIdentity("vit", {"heads": 4, "epsilon": 1e-12, "is_tied": True}, ("neg", "pos"), "abc")
    assert identity_in(metadata_of(known)) == known == identity_from_json(json.loads(json.dumps(known.to_json())))
    assert identity_in({"format": "pt"}) is None
    for damage in ("{", "[]", '{"architecture": "vit"}', '{"architecture": "vit", "sizes": {"heads": null}}'):
        with pytest.raises(InvalidArgument, match="identity of a model is damaged"):
            identity_in({"rdukit.model": damage})


def test_a_tokenizer_is_told_by_its_vocabulary_and_merges() -> None:
    model = {"vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}
    one = tokenizer_digest(json.dumps({"model": model, "added_tokens": []}))
    assert one == tokenizer_digest(json.dumps({"model": {**model, "merges": [["a", "b"]], "type": "BPE"}}, indent=2))
    assert one == tokenizer_digest(json.dumps({"model": {**model, "vocab": {"ab": 2, "b": 1, "a": 0}}})), "its order"
    assert one != tokenizer_digest(json.dumps({"model": {**model, "vocab": {"a": 1, "b": 0, "ab": 2}}}))
    with pytest.raises(InvalidArgument, match=r"expected a tokenizer\.json"):
        tokenizer_digest("{}")


HUB_SIZES: list[tuple[str, dict[str, SizeValue]]] = [
    (model, sizes)
    for model in model_names()
    if get_model(model).hub is not None
    for sizes in (
        {}, *(dict(each.sizes) for each in get_model(model).variants.values()),
        # Pooling is not in config.json: modules.json states it.
        *({name: value} for name, value in SILENT.get(model, {}).items() if name not in {"pooling", "normalizes"}),
    )
]  # fmt: skip


@pytest.mark.parametrize(("model", "sizes"), HUB_SIZES)
def test_a_folders_config_says_the_same_model_when_it_is_read_again(model: str, sizes: dict[str, SizeValue]) -> None:
    entry = get_model(model)
    assert entry.hub is not None
    config = json.loads(json.dumps(entry.hub.config_of_sizes(entry.check_sizes(sizes))))
    assert find_differences(entry.identity(sizes), entry.identity(entry.hub.sizes_of_config(config))) == ()
