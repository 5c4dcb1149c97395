"""``rdukit finetune`` of T5, mT5, BART and mBART, next to transformers trained alike on the same sources and targets.

Losses in f32 differ by sums in another order, 1e-3 over all steps; logits of the written folder by 1e-4.
"""

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from rdukit.errors import InvalidArgument
from rdukit_modelbox.artifacts.hub_folder import prepare_hub_folder
from rdukit_modelbox.cli.finetune import finetune
from rdukit_modelbox.finetune.options import FinetuneOptions
from rdukit_modelbox.finetune.run import Finetuned, box_for, open_model
from rdukit_modelbox.finetune.run import finetune as run
from rdukit_modelbox.finetune.seq2seq import tokenize_sources
from rdukit_modelbox.training.options import learning_rate
from rdukit_serving.text.program import TextProgram, generate_all
from rdukit_serving.text.sampling import Sampler, SamplingOptions
from rdukit_zoo.checkpoints.folder import load_hub_folder
from support import shows
from support.boxes import RecordingContext
from support.hub_folders import our_losses

pytestmark = shows("encoder-decoders", "finetune")

transformers = pytest.importorskip("transformers", reason="the extra `models` is not installed")

STEPS: Final = 12
WORDS: Final = ("<pad>", "</s>", "<s>", "en", "de", *(f"w{number}" for number in range(35)))
_T5: Final[dict[str, Any]] = {
    "vocab_size": 40, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 2,
    "num_heads": 4, "dropout_rate": 0.0, "decoder_start_token_id": 0, "n_positions": 16,
    "feed_forward_proj": "gated-gelu",
}  # fmt: skip
_BART: Final[dict[str, Any]] = {
    "vocab_size": 40, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 16,
    "dropout": 0.0, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2, "decoder_start_token_id": 1,
    "forced_eos_token_id": 1,
}  # fmt: skip
#: Ends of the names of T5's linear layers.
_T5_LAYERS: Final = (
    "DenseReluDense.wi", "DenseReluDense.wo", *(f"EncDecAttention.{each}" for each in "koqv"),
    *(f"SelfAttention.{each}" for each in "koqv"),
)  # fmt: skip
#: Family → its configuration class and values.
CONFIGS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "t5": ("T5", {**_T5, "feed_forward_proj": "relu"}),
    "mt5": ("MT5", {**_T5, "tie_word_embeddings": False}),
    "bart": ("Bart", _BART),
    "mbart": ("MBart", {**_BART, "decoder_start_token_id": 4, "scale_embedding": True}),
}


def write_folder(folder: Path, name: str) -> Any:
    """Write a small random model with a tokenizer of words, which ends each text; returns transformers' model."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s> en" if name == "mbart" else "$A </s>", special_tokens=[("</s>", 1), ("en", 3)]
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="</s>", pad_token="<pad>", unk_token="w0"
    ).save_pretrained(folder)
    torch.manual_seed(3)
    kind, values = CONFIGS[name]
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(getattr(transformers, f"{kind}Config")(**values))
    model.save_pretrained(folder)
    return type(model).from_pretrained(folder).eval()


def write_data(folder: Path, count: int = 60) -> Path:
    """Write numbers with their successors: texts of two to six words."""
    path = folder / "pairs.jsonl"
    lines = []
    for number in range(count):
        words = [f"w{(number * step) % 17 + 3}" for step in range(1, number % 5 + 3)]
        after = [f"w{int(word[1:]) + 1}" for word in words]
        lines.append(json.dumps({"prompt": " ".join(words), "completion": " ".join(after), "more": 1}) + "\n")
    path.write_text("".join(lines))
    return path


def losses_of_transformers(model: Any, output: Path, lr: float) -> list[float]:
    """Train transformers' model with torch's AdamW on the same batches in the same order."""
    tokens, labels = (np.load(output / ".finetune" / "data" / "train" / f"{name}.npy") for name in ("tokens", "labels"))
    report = json.loads((output / "finetune.json").read_text())
    size, total = report["asked"]["batch_size"], report["reached"]["steps"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.999), weight_decay=0.0)
    losses: list[float] = []
    for epoch in range(9):
        order = np.random.default_rng([0, epoch]).permutation(len(tokens))
        for rows in order[: len(order) // size * size].reshape(-1, size)[: total - len(losses)]:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(len(losses), total, lr, "linear", 0, 1 / total)
            asked = torch.from_numpy(tokens[rows])
            loss = model(
                input_ids=asked, attention_mask=(asked != 0).long(), labels=torch.from_numpy(labels[rows])
            ).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(float(loss.detach()))
    return losses


def train(folder: Path, options: FinetuneOptions) -> Finetuned:
    """Fine-tune the model of a test, and return the result."""
    box = box_for(folder / "model")
    return run(folder / "model", write_data(folder), folder / "out", options, RecordingContext(box))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.mark.parametrize("name", ["t5", *(pytest.param(n, marks=pytest.mark.long) for n in ("mt5", "bart", "mbart"))])
def test_a_folder_becomes_a_folder_with_the_losses_and_logits_of_transformers(folder: Path, name: str) -> None:
    model, output = write_folder(folder / "model", name), folder / "out"
    words = [str(folder / "model"), str(write_data(folder)), "--output", str(output), "--max-steps", str(STEPS)]
    done = CliRunner().invoke(finetune, [*words, "--epochs", "9", "--lr", "0.01", "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["after"]["held_out_loss"] < told["before"]["held_out_loss"]
    assert our_losses(output) == pytest.approx(losses_of_transformers(model, output, 0.01), abs=1e-3)

    read = type(model).from_pretrained(output).eval()
    ours: Any = load_hub_folder(output).eval()
    tokens, labels = torch.tensor([[8, 9, 10, 1, 0], [8, 9, 10, 11, 1]]), torch.tensor([[9, 10, 1], [9, 1, -100]])
    with torch.no_grad():
        made = read(input_ids=tokens, attention_mask=(tokens != 0).long(), labels=labels)
        torch.testing.assert_close(ours.logits(tokens, ours.shifted(labels)), made.logits, atol=1e-4, rtol=1e-4)
        trained = model(input_ids=tokens, attention_mask=(tokens != 0).long(), labels=labels)
        torch.testing.assert_close(made.logits, trained.logits, atol=3e-3, rtol=1e-2)
    before, after = (json.loads((place / "config.json").read_text()) for place in (folder / "model", output))
    assert {key: value for key, value in after.items() if before.get(key) != value} == {}
    assert (output / "generation_config.json").read_text() == (folder / "model/generation_config.json").read_text()


@pytest.mark.long
def test_updates_of_low_rank_are_merged_and_named_as_peft_names_them(folder: Path) -> None:
    modules = write_folder(folder / "model", "t5")
    options = FinetuneOptions(lora=4, epochs=9, max_steps=6, lr=0.02)
    made = train(folder, options)
    assert made.adapter is not None and made.after["held_out_loss"] < made.before["held_out_loss"]
    config = json.loads((made.adapter / "adapter_config.json").read_text())
    assert (config["task_type"], config["target_modules"]) == ("SEQ_2_SEQ_LM", [*_T5_LAYERS])
    updates = load_file(made.adapter / "adapter_model.safetensors")
    names = {name.removeprefix("base_model.model.").rpartition(".lora_")[0] for name in updates}
    layers = {name: layer for name, layer in modules.named_modules() if isinstance(layer, torch.nn.Linear)}
    assert names == layers.keys() - {"lm_head"}
    with torch.no_grad():
        for name in names:
            down, up = (updates[f"base_model.model.{name}.lora_{part}.weight"] for part in "AB")
            layers[name].weight += config["lora_alpha"] / config["r"] * (up @ down)
    merged = type(modules).from_pretrained(made.folder).state_dict()
    for key, value in modules.state_dict().items():
        torch.testing.assert_close(merged[key], value, atol=1e-5, rtol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("name", ["t5", "mbart"])
def test_the_written_folder_is_served_with_the_tokens_of_transformers(folder: Path, name: str) -> None:
    kind = type(write_folder(folder / "model", name))
    options = FinetuneOptions(epochs=9, max_steps=30, lr=0.01)
    made = run(
        folder / "model", write_data(folder), folder / "out", options, RecordingContext(box_for(folder / "model"))
    )
    theirs = kind.from_pretrained(made.folder).eval()
    source = torch.tensor([[8, 9, 10, 1]])
    wanted = theirs.generate(
        source, attention_mask=torch.ones_like(source), max_new_tokens=8, do_sample=False, eos_token_id=None,
        forced_eos_token_id=None,
    )  # fmt: skip
    served = prepare_hub_folder(made.folder, folder / "cache", precision="f32")
    with TextProgram(Path(served.pef), Path(served.checkpoint)) as program:
        start = [int(theirs.config.decoder_start_token_id)]
        ((_, found),) = generate_all(
            program, [(source[0].tolist(), Sampler(SamplingOptions(temperature=0.0), start))], 8
        )
    assert found == wanted[0, 1:].tolist()


def test_sources_and_targets_are_cut_before_their_end_and_targets_of_mbart_have_their_language(folder: Path) -> None:
    folder.joinpath("in.jsonl").write_text(
        json.dumps({"prompt": "w1 w2 w3 w4", "completion": "w5 w6 w7 w8"}) + "\n"
        + json.dumps({"prompt": "w1", "completion": "w5"}) + "\n"
    )  # fmt: skip
    expected = {
        "t5": ([6, 7, 1], [10, 11, 1], [10, 1, -100]), "mbart": ([6, 1, 3], [10, 1, 4], [10, 1, 4]),
    }  # fmt: skip
    for name, (source, target, other) in expected.items():
        write_folder(folder / name, name)
        hub, context = open_model(folder / name), RecordingContext(box_for(folder / name))
        sizes = {**hub.sizes, "prompt_length": 3, "context_length": 3}
        made = tokenize_sources(folder / "in.jsonl", hub, sizes, 0.0, 0, context)["train"]
        order = np.argsort(made["tokens"][:, 1])[::-1]
        assert made["tokens"][order[0]].tolist() == source
        assert made["labels"][order].tolist() == [target, other]
        assert "1 of 2 prompts were cut to 3 tokens (--context)" in context.lines


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"messages": [{"role": "user", "content": "w1"}]}', "in.jsonl:1: chats are not trained with an encoder"),
        ('{"prompt": "w1", "chosen": "w2", "rejected": "w3"}', "in.jsonl:1: preference pairs are not trained with"),
        ('{"text": "w1"}', "in.jsonl:1: texts are not trained with an encoder; expected"),
        ('{"prompt": "w1", "completion": " "}', r"in.jsonl:1: expected \{.prompt"),
        ('{"completion": "w1"}', r"in.jsonl:1: expected \{.prompt"),
        ('"w1"', r"in.jsonl:1: expected \{.prompt"),
        (
            '{"prompt": "w1 <pad> w2", "completion": "w1"}',
            "in.jsonl:1: the prompt is empty or has a token that the model cannot read",
        ),
        ("", "in.jsonl has no line"),
    ],
)
def test_other_data_are_refused_with_their_place(folder: Path, text: str, words: str) -> None:
    write_folder(folder / "model", "t5")
    (folder / "in.jsonl").write_text(text + "\n")
    hub, context = open_model(folder / "model"), RecordingContext(box_for(folder / "model"))
    with pytest.raises(InvalidArgument, match=words):
        tokenize_sources(folder / "in.jsonl", hub, hub.sizes, 0.0, 0, context)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"eos_token_id": 2}, "the tokenizer ends a text with token 1, but eos_token_id is 2; expected the same"),
        ({"forced_bos_token_id": 3}, "forced_bos_token_id is 3 and decoder_start_token_id 4; expected decoder_start"),
        ({"forced_bos_token_id": 99}, "forced_bos_token_id is 99; expected a token, 0 <= x < 40"),
    ],
)
def test_folders_that_would_be_trained_otherwise_than_they_generate_are_refused(
    folder: Path, said: dict[str, int], words: str
) -> None:
    write_folder(folder / "model", "mbart")
    file = folder / "model" / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **said}))
    hub, context = open_model(folder / "model"), RecordingContext(box_for(folder / "model"))
    with pytest.raises(InvalidArgument, match=words):
        tokenize_sources(write_data(folder), hub, hub.sizes, 0.0, 0, context)
