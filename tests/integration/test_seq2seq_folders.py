"""Folders of T5, BART and mBART: logits, gradients and greedy texts of transformers, with caches and without."""

import json
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from safetensors.torch import load_file, save_file

from rdukit.errors import InvalidArgument
from rdukit_modelbox.artifacts.hub_folder import box_of, limited_sizes, prepare_hub_folder, write_checkpoint
from rdukit_serving.text.generation_config import forced_tokens, sampling_defaults
from rdukit_serving.text.program import TextProgram, generate_all
from rdukit_serving.text.sampling import Sampler, SamplingOptions
from rdukit_zoo.checkpoints.folder import load_hub_folder, open_hub_folder, save_hub_folder
from rdukit_zoo.language.seq2seq_sizes import SEQ2SEQ
from support import shows

pytestmark = shows("encoder-decoders", "huggingface")

transformers = pytest.importorskip("transformers", reason="the extra `models` is not installed")

WORDS: Final = 97
_T5: Final[dict[str, Any]] = {
    "vocab_size": WORDS, "d_model": 32, "d_kv": 10, "d_ff": 48, "num_layers": 3, "num_decoder_layers": 2,
    "num_heads": 4, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, "dropout_rate": 0.0,
    "decoder_start_token_id": 0, "n_positions": 70,
}  # fmt: skip
_BART: Final[dict[str, Any]] = {
    "vocab_size": WORDS, "d_model": 32, "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 40, "max_position_embeddings": 70,
    "dropout": 0.0,
}  # fmt: skip

#: Family and form → its configuration class and values.
CONFIGS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "t5": ("T5", _T5),
    "t5-gated": ("T5", {**_T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "mt5": ("MT5", {**_T5, "feed_forward_proj": "gated-gelu"}),
    "bart": ("Bart", _BART),
    "mbart": ("MBart", {**_BART, "scale_embedding": True, "decoder_start_token_id": 5}),
}


def write_folder(folder: Path, name: str) -> Any:
    """Write a random model's folder, and return the model of transformers as it reads it."""
    torch.manual_seed(3)
    kind, values = CONFIGS[name]
    kind_of = getattr(transformers, f"{kind}ForConditionalGeneration")
    model = kind_of(getattr(transformers, f"{kind}Config")(**values))
    if name == "t5-gated":  # as published folders of T5 1.1 have it
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    if name in {"bart", "mbart"}:
        torch.nn.init.normal_(model.final_logits_bias)
    model.save_pretrained(folder)
    if name == "t5-gated":
        tensors = load_file(folder / "model.safetensors")
        tensors["lm_head.weight"] = model.lm_head.weight.detach().clone()
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        config = json.loads((folder / "config.json").read_text())
        del config["scale_decoder_outputs"]
        (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    return kind_of.from_pretrained(folder).eval()


def require_near(found: torch.Tensor, wanted: torch.Tensor, share: float) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=share * float(wanted.detach().abs().max()))


def draw_batch(padding: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sources and labels of two texts, of which the first is the shorter one."""
    torch.manual_seed(7)
    tokens, labels = torch.randint(6, WORDS, (2, 40)), torch.randint(6, WORDS, (2, 20))
    tokens[0, 30:], labels[0, 15:] = padding, -100
    return tokens, labels


@pytest.mark.parametrize("name", CONFIGS)
def test_a_folder_gives_transformers_logits_and_gradients_and_is_written_back(name: str, tmp_path: Path) -> None:
    theirs = write_folder(tmp_path / "theirs", name)
    folder = open_hub_folder(tmp_path / "theirs")
    ours: Any = load_hub_folder(tmp_path / "theirs").eval()
    assert folder.sizes["is_tied"] is (name != "t5-gated") and folder.sizes["scales_head"] is (name == "t5")
    tokens, labels = draw_batch(theirs.config.pad_token_id)
    asked = {"input_ids": tokens, "attention_mask": (tokens != theirs.config.pad_token_id).long(), "labels": labels}
    wanted, found = theirs(**asked), ours(tokens, labels)
    require_near(ours.logits(tokens, ours.shifted(labels)), wanted.logits, 1e-5)
    require_near(found, wanted.loss, 1e-5)
    wanted.loss.backward()
    found.backward()
    gradients = {key: value.grad for key, value in theirs.named_parameters() if value.grad is not None}
    largest = max(float(value.abs().max()) for value in gradients.values())
    for key, parameter in ours.named_parameters():
        grad = gradients[folder.hub.stored_name(key)]
        # Biases of keys change nothing behind a softmax: their gradients are rounding.
        scale = max(float(grad.abs().max()), 1e-3 * largest)
        torch.testing.assert_close(parameter.grad, grad, rtol=0, atol=1e-4 * scale)

    save_hub_folder(ours, folder.entry, folder.sizes, tmp_path / "ours")
    one, other = (load_file(tmp_path / each / "model.safetensors") for each in ("theirs", "ours"))
    assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
    assert open_hub_folder(tmp_path / "ours").sizes == folder.sizes
    again = type(theirs).from_pretrained(tmp_path / "ours").eval()
    with torch.no_grad():
        require_near(again(**asked).logits, wanted.logits, 1e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_several_targets_with_sources_of_their_own_continue_from_the_caches(name: str, tmp_path: Path) -> None:
    write_folder(tmp_path, name)
    folder = open_hub_folder(tmp_path)
    assert folder.entry.text_serving is not None
    built = folder.entry.text_serving.build
    ours: Any = load_hub_folder(tmp_path, lambda **sizes: built(texts=2, **sizes)).eval()
    start, spare = int(folder.sizes["start"]), 2
    sources, targets = [torch.randint(6, WORDS, (1, size)) for size in (9, 31)], torch.randint(6, WORDS, (2, 12))
    with torch.no_grad():
        wanted = [
            ours.logits(source, torch.cat([torch.tensor([[start]]), target[None]], 1))[0]
            for source, target in zip(sources, targets, strict=True)
        ]
        for row, source in enumerate(sources):
            read, size = torch.zeros(3, 1, 40, dtype=torch.int64), source.shape[1]
            read[0, 0, :size], read[1, 0, :size] = source[0], torch.arange(size)
            read[2] = spare
            read[2, 0, :size] = row
            found = ours(read[0], read[1], torch.tensor([row]), read[2], torch.tensor([size - 1]))
            require_near(found[0], wanted[row][0], 1e-5)
        for place in range(12):  # the second target begins three runs later, the third row of a run fills it
            at = torch.tensor([[place + 1], [max(place - 2, 0)], [0]])
            token = torch.stack([targets[0, place], targets[1, max(place - 3, 0)], torch.tensor(0)]).view(3, 1)
            rows = torch.tensor([0, 1 if place > 2 else spare, spare])
            found = ours(token, at, rows, rows.view(3, 1))
            require_near(found[0], wanted[0][place + 1], 1e-5)
            if place > 2:
                require_near(found[1], wanted[1][place - 2], 1e-5)


def test_each_family_has_a_case() -> None:
    assert {name.partition("-")[0] for name in CONFIGS} == set(SEQ2SEQ)


def test_tensors_of_older_files_that_are_not_used_are_ignored(tmp_path: Path) -> None:
    theirs = write_folder(tmp_path, "t5")
    tensors, shared = load_file(tmp_path / "model.safetensors"), theirs.shared.weight.detach()
    tensors |= {f"{side}.embed_tokens.weight": shared.clone() for side in ("encoder", "decoder")}
    tensors["lm_head.weight"] = shared.clone()
    tensors["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] = torch.ones(8, 4)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    ours: Any = load_hub_folder(tmp_path).eval()
    tokens, labels = draw_batch(0)
    with torch.no_grad():
        asked = {"input_ids": tokens, "attention_mask": (tokens != 0).long(), "labels": labels}
        require_near(ours.logits(tokens, ours.shifted(labels)), theirs(**asked).logits, 1e-5)


def test_what_a_folder_says_of_generating_lies_beside_its_checkpoint(tmp_path: Path) -> None:
    write_folder(tmp_path / "folder", "bart")
    said = {
        "decoder_start_token_id": 7, "forced_bos_token_id": 8, "forced_eos_token_id": 2, "min_length": 5,
        "min_new_tokens": 2, "no_repeat_ngram_size": 3, "num_beams": 4, "eos_token_id": 2,
    }  # fmt: skip
    (tmp_path / "folder" / "generation_config.json").write_text(json.dumps(said))
    folder = open_hub_folder(tmp_path / "folder")
    assert folder.sizes["start"] == 7
    write_checkpoint(folder, folder.sizes, tmp_path / "checkpoint")
    assert forced_tokens(tmp_path / "checkpoint") == (8, 2)
    assert sampling_defaults(tmp_path / "checkpoint") == {
        "min_tokens": 2, "min_length": 5, "no_repeat_ngram_size": 3
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "changed", "words"),
    [
        ("t5", {"feed_forward_proj": "linear-gelu"}, "feed_forward_proj is 'linear-gelu'; expected such as 'relu'"),
        ("t5", {"feed_forward_proj": "selu"}, "activation is 'selu'; expected one of silu"),
        ("bart", {"is_encoder_decoder": False}, "is_encoder_decoder is False"),
        ("bart", {"decoder_start_token_id": 97}, "start is 97; expected a token, 0 <= x < 97"),
        ("bart", {"architectures": ["BartForQuestionAnswering"]}, "nearest known architecture is BartForConditional"),
        ("t5", {"architectures": ["LongT5ForConditionalGeneration"]}, "nearest known architecture is T5ForConditional"),
        ("t5", {"n_positions": 10**9}, "context_length is 1000000000; expected 1 to 32768"),
        ("t5", {"num_layers": 10**7}, "layers is 10000000; expected 1 to 512"),
        ("bart", {"encoder_attention_heads": 0}, "heads is 0; expected 1 to"),
        ("bart", {"d_model": -32}, "width is -32; expected 1 to"),
        ("t5", {"layer_norm_epsilon": float("nan")}, "epsilon is nan; expected a finite number"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(
    name: str, changed: dict[str, Any], words: str, tmp_path: Path
) -> None:
    write_folder(tmp_path, name)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changed}))
    with pytest.raises(InvalidArgument, match=words):
        open_hub_folder(tmp_path)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"decoder_start_token_id": True}, "decoder_start_token_id is True; expected the number of one token"),
        ({"decoder_start_token_id": WORDS}, f"start is {WORDS}; expected a token"),
        ({"forced_bos_token_id": WORDS}, f"forced_bos_token_id is {WORDS}; expected a token, 0 <= x < {WORDS}"),
        (
            {"encoder_no_repeat_ngram_size": 2},
            "encoder_no_repeat_ngram_size is 2, which is not computed; expected none",
        ),
        ({"temperature": "hot"}, "a sampling option that is not a number"),
    ],
)
def test_what_a_folder_says_of_generating_is_obeyed_or_refused(
    said: dict[str, Any], words: str, tmp_path: Path
) -> None:
    write_folder(tmp_path / "folder", "bart")
    (tmp_path / "folder" / "generation_config.json").write_text(json.dumps(said))

    def convert() -> None:
        folder = open_hub_folder(tmp_path / "folder")
        write_checkpoint(folder, limited_sizes(folder.entry, folder.sizes), tmp_path / "checkpoint")

    with pytest.raises(InvalidArgument, match=words):
        convert()


def test_the_model_has_no_box(tmp_path: Path) -> None:
    write_folder(tmp_path, "bart")
    assert box_of(open_hub_folder(tmp_path).entry) == ""


@pytest.mark.long
@pytest.mark.parametrize("name", CONFIGS)
def test_a_folder_is_served_with_the_tokens_of_transformers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    theirs = write_folder(tmp_path / "theirs", name)
    made = prepare_hub_folder(tmp_path / "theirs", tmp_path / "cache", precision="f32")
    assert (made.box, made.name) == ("", name.partition("-")[0])
    sources = [torch.randint(6, WORDS, (1, size)) for size in (5, 33, 70)]
    with TextProgram(Path(made.pef), Path(made.checkpoint)) as program, torch.no_grad():
        for source in sources:
            logits = torch.from_numpy(program.start(source[0].tolist()).copy())
            begun = torch.full((1, 1), int(theirs.config.decoder_start_token_id))
            require_near(logits, theirs(input_ids=source, decoder_input_ids=begun).logits[0, -1], 1e-5)
        # Without repeated tokens, because the greedy texts of random weights have few others.
        options = SamplingOptions(temperature=0.0, no_repeat_ngram_size=1)
        start = [int(theirs.config.decoder_start_token_id)]
        asked = [(source[0].tolist(), Sampler(options, start)) for source in sources]
        found = dict(generate_all(program, asked, 64))
        for number, source in enumerate(sources):
            wanted = theirs.generate(
                source, attention_mask=torch.ones_like(source), max_new_tokens=64, do_sample=False, eos_token_id=None,
                forced_eos_token_id=None, no_repeat_ngram_size=1,
            )  # fmt: skip
            assert found[number] == wanted[0, 1:].tolist()
            assert len(set(found[number])) == 64
        vector = theirs.get_encoder()(sources[0])[0].mean(1)[0]
        require_near(torch.from_numpy(program.embed(sources[0][0].tolist()).copy()), vector, 1e-5)
