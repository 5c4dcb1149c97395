"""``rdukit finetune`` on preference pairs: losses of DPO as torch computes them for transformers' model, in f32."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, processors

from rdukit.errors import InvalidArgument
from rdukit_modelbox.finetune.examples import PREFERENCES, prepare_examples
from rdukit_modelbox.finetune.options import FinetuneOptions
from rdukit_modelbox.finetune.preferences import tokenize_pairs
from rdukit_modelbox.finetune.run import box_for, open_model
from rdukit_modelbox.finetune.run import finetune as run
from rdukit_modelbox.preprocessing.articles import ArticlePolicy, cut_pieces, join_tokens
from rdukit_modelbox.training.options import learning_rate
from support import shows
from support.boxes import RecordingContext
from support.hub_folders import BEGIN, CONTEXT, END, our_losses, write_model

pytestmark = shows("finetune", "huggingface")

transformers = pytest.importorskip("transformers", reason="the extra `models` is not installed")

BETA, STEPS = 0.2, 12


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path / "home"))
    return tmp_path


def write_pairs(folder: Path, count: int = 40) -> Path:
    path = folder / "pairs.jsonl"
    lines = [
        {"prompt": f"What is {n} and {n + 1}?", "chosen": f" It is {2 * n + 1}.", "rejected": " Who knows what."}
        for n in range(count)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def dpo_losses(model: Any, output: Path, lr: float) -> list[float]:
    """Train transformers' model by the formula of the paper, on the same pairs in the same order."""
    arrays = {path.stem: np.load(path) for path in (output / ".finetune" / "data" / "train").glob("*.npy")}
    report = json.loads((output / "finetune.json").read_text())
    size, total = report["asked"]["batch_size"], report["reached"]["steps"]

    def margins(rows: Any) -> torch.Tensor:
        tokens, counted = (torch.from_numpy(arrays[name][rows]) for name in ("tokens", "counted"))
        likely = model(tokens.flatten(0, 1)).logits[:, :-1].log_softmax(-1)
        chosen = likely.gather(-1, tokens.flatten(0, 1)[:, 1:, None])[..., 0] * counted.flatten(0, 1)[:, 1:]
        sums = chosen.sum(-1).view(-1, 2)
        return sums[:, 0] - sums[:, 1]

    with torch.no_grad():
        reference = margins(np.arange(len(arrays["margin"])))
    np.testing.assert_allclose(arrays["margin"], reference.numpy(), atol=1e-4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.999), weight_decay=0.0)
    losses: list[float] = []
    per_epoch = len(reference) // size
    while len(losses) < total:
        order = np.random.default_rng([0, len(losses) // per_epoch]).permutation(len(reference))
        for start in range(min(per_epoch, total - len(losses))):
            rows = order[start * size : (start + 1) * size]
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(len(losses), total, lr, "linear", 0, 1 / total)
            loss = -F.logsigmoid(BETA * (margins(rows) - reference[rows])).mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("kind", ["llama", pytest.param("gpt2", marks=pytest.mark.long)])
def test_pairs_are_learnt_with_the_losses_of_the_paper(folder: Path, kind: str) -> None:
    model = write_model(folder / "model", kind)
    options = FinetuneOptions(
        context=CONTEXT, batch_size=4, epochs=9, max_steps=STEPS, lr=0.002, dev_ratio=0.2, beta=BETA
    )
    box = box_for(folder / "model")
    made = run(folder / "model", write_pairs(folder), folder / "out", options, RecordingContext(box))
    assert made.before["held_out_loss"] == pytest.approx(np.log(2), abs=1e-4), "the model is its own reference"
    assert made.before["preferred"] <= 1
    assert made.after["held_out_loss"] < made.before["held_out_loss"]
    assert made.after["preferred"] == 1.0
    assert our_losses(folder / "out") == pytest.approx(dpo_losses(model, folder / "out", 0.002), abs=1e-3)
    read = transformers.AutoModelForCausalLM.from_pretrained(folder / "out").eval()
    tokens = torch.arange(2, 22)[None]
    with torch.no_grad():
        torch.testing.assert_close(read(tokens).logits, model(tokens).logits, atol=3e-3, rtol=1e-2)


@pytest.mark.long
def test_updates_of_low_rank_learn_pairs_beside_the_frozen_reference(folder: Path) -> None:
    write_model(folder / "model", "llama")
    options = FinetuneOptions(lora=4, context=CONTEXT, batch_size=4, max_steps=6, lr=0.01, dev_ratio=0.2)
    box = box_for(folder / "model")
    made = run(folder / "model", write_pairs(folder), folder / "out", options, RecordingContext(box))
    assert made.adapter is not None
    assert made.after["held_out_loss"] < made.before["held_out_loss"] == pytest.approx(np.log(2), abs=1e-4)


def test_pairs_of_chats_are_written_by_the_models_template(folder: Path) -> None:
    write_model(folder / "model", "llama")
    asked, yes, no = (
        {"role": role, "content": text}
        for role, text in (("user", "Sure?"), ("assistant", "Yes."), ("assistant", "No."))
    )
    lines = [
        {"prompt": [asked], "chosen": [yes], "rejected": [no]}, {"chosen": [asked, yes], "rejected": [asked, no]},
    ]  # fmt: skip
    (folder / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    made = prepare_examples(folder / "in.jsonl", folder / "model", END, folder / "out.jsonl")
    assert made.kind == PREFERENCES
    first, second = (json.loads(line) for line in made.path.read_text().splitlines())
    assert first == {
        "prompt": f"{BEGIN}user\nSure?{END}\n{BEGIN}assistant\n", "chosen": "Yes.", "rejected": "No.",
        "place": "in.jsonl:1",
    }  # fmt: skip
    assert second == {**first, "place": "in.jsonl:2"}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"prompt": "a", "chosen": "b"}, r"in.jsonl:2: expected \{.prompt.: …, .chosen.: …, .rejected.: …\} with"),
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, "in.jsonl:2: chosen and rejected are the same"),
        ({"prompt": "a", "chosen": "b", "rejected": 3}, "in.jsonl:2: expected"),
        ({"prompt": "", "chosen": "b", "rejected": "c"}, "in.jsonl:2: expected"),
        ({"chosen": [{"role": "user", "content": "a"}], "rejected": [{"role": "user", "content": "b"}]},
         "in.jsonl:2: there is no message of the assistant"),
        ({"chosen": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
          "rejected": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "c"}]},
         "in.jsonl:2: the messages before the last differ"),
    ],
)  # fmt: skip
def test_a_pair_that_cannot_be_used_is_named(folder: Path, line: dict[str, Any], words: str) -> None:
    write_model(folder / "model", "llama")
    good = {"prompt": "a", "chosen": "b", "rejected": "c"}
    (folder / "in.jsonl").write_text(json.dumps(good) + "\n" + json.dumps(line) + "\n")
    with pytest.raises(InvalidArgument, match=words):
        prepare_examples(folder / "in.jsonl", folder / "model", END, folder / "out.jsonl")


def test_a_prompt_begins_once_and_has_no_end_whatever_the_tokenizer_puts_around_it(folder: Path) -> None:
    write_model(folder / "model", "llama")
    path = folder / "model" / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    begin, end = (tokenizer.token_to_id(name) for name in (BEGIN, END))
    around = processors.TemplateProcessing(single=f"{BEGIN} $A {END}", special_tokens=[(BEGIN, begin), (END, end)])
    tokenizer.post_processor = around
    tokenizer.save(str(path))
    config = path.with_name("tokenizer_config.json")
    config.write_text(json.dumps({**json.loads(config.read_text()), "bos_token": BEGIN}))
    records = folder / "in.jsonl"
    pairs = [{"prompt": prompt, "chosen": "b", "rejected": "c", "place": "1"} for prompt in ("a", f"{BEGIN}a")]
    records.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    arrays = tokenize_pairs(records, open_model(folder / "model"), 8, 0.0, 0)["train"]
    a, b, c = (tokenizer.encode(text, add_special_tokens=False).ids[0] for text in "abc")
    for tokens in arrays["tokens"]:
        assert tokens.tolist() == [[begin, a, other, end, end, end, end, end] for other in (b, c)]
    joined = join_tokens(cut_pieces([f"{BEGIN}a", "a"], ArticlePolicy()), [[begin, begin, a, end], [a]], end, begin)
    assert joined.ids_T.tolist() == [begin, a, end, a, end], "plain texts are read alike"


def test_a_prompt_without_room_for_a_completion_is_refused_by_its_line(folder: Path) -> None:
    write_model(folder / "model", "llama")
    long = {"prompt": "word " * 60, "chosen": "b", "rejected": "c"}
    (folder / "in.jsonl").write_text(json.dumps(long) + "\n")
    box = box_for(folder / "model")
    with pytest.raises(InvalidArgument, match=r"in.jsonl:1: the prompt has \d+ tokens; expected 1 to 47"):
        run(
            folder / "model",
            folder / "in.jsonl",
            folder / "out",
            FinetuneOptions(context=CONTEXT),
            RecordingContext(box),
        )
