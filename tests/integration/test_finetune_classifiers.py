"""``rdukit finetune`` on classifiers: a BERT of texts and a ViT of pictures, next to transformers trained alike.

Losses in f32 differ by sums in another order, 1e-3 over all steps.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rdukit.errors import InvalidArgument
from rdukit_modelbox.finetune.classes import choose_classes
from rdukit_modelbox.finetune.options import FinetuneOptions
from rdukit_modelbox.finetune.run import box_for, open_model
from rdukit_modelbox.finetune.run import finetune as run
from rdukit_modelbox.training.options import learning_rate
from rdukit_serving.raw_inputs.pictures import find_picture_preprocessing
from support import shows
from support.boxes import RecordingContext
from support.hub_classifiers import write_bert, write_colours, write_texts, write_vit

pytestmark = shows("finetune", "huggingface", "bert-classifier", "vit", "image-folders")

transformers = pytest.importorskip("transformers", reason="the extra `models` is not installed")

STEPS = 10
OPTIONS = FinetuneOptions(context=16, batch_size=8, epochs=9, max_steps=STEPS, lr=0.01, dev_ratio=0.25)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RDUKIT_KERNELS", "portable")
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path / "home"))
    return tmp_path


def losses_of_transformers(model: Any, output: Path, names: dict[str, str]) -> list[float]:
    """Train transformers' model with torch's AdamW on the same batches in the same order."""
    place = output / ".finetune" / "data" / "dataset" / "train"
    arrays = {name: torch.from_numpy(np.load(place / f"{name}.npy")) for name in names}
    size = json.loads((output / "finetune.json").read_text())["asked"]["batch_size"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=OPTIONS.lr, betas=(0.9, 0.999), weight_decay=0.0)
    losses: list[float] = []
    epoch = 0
    while len(losses) < STEPS:
        count = len(arrays["label"])
        order = np.random.default_rng([0, epoch]).permutation(count)
        for index in range(count // size):
            if len(losses) == STEPS:
                break
            chosen = torch.from_numpy(order[index * size : (index + 1) * size])
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(len(losses), STEPS, OPTIONS.lr, "linear", 0, 1 / STEPS)
            loss = model(**{names[name]: values[chosen] for name, values in arrays.items()}).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(float(loss.detach()))
        epoch += 1
    return losses


def our_losses(output: Path) -> list[float]:
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line and "lr" in line]


def test_a_bert_keeps_its_head_for_its_classes_and_the_folder_names_them(folder: Path) -> None:
    labels = ("bad", "good")
    model = write_bert(folder / "model", id2label=dict(enumerate(labels)), label2id={"bad": 0, "good": 1})
    data, output = write_texts(folder / "reviews.jsonl", labels), folder / "out"
    made = run(folder / "model", data, output, OPTIONS, RecordingContext(box_for(folder / "model")))
    names = {"tokens": "input_ids", "types": "token_type_ids", "mask": "attention_mask", "label": "labels"}
    assert our_losses(output) == pytest.approx(losses_of_transformers(model, output, names), abs=1e-3)
    assert made.before.keys() == made.after.keys() == {"held_out_loss", "accuracy"}
    read = transformers.AutoModelForSequenceClassification.from_pretrained(output).eval()
    assert read.config.id2label == {0: "bad", 1: "good"}
    tokenizer = transformers.AutoTokenizer.from_pretrained(output)
    given = tokenizer(["w1 w2 w3", "w101 w102"], return_tensors="pt", padding="max_length", max_length=16)
    with torch.no_grad():
        logits = read(**given).logits
    torch.testing.assert_close(logits, model(**given).logits.detach(), atol=3e-3, rtol=1e-2)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["Roberta", "ModernBert"])
def test_other_encoders_train_as_transformers_trains_them(kind: str, folder: Path) -> None:
    special = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    if kind == "ModernBert":
        special |= {"cls_token_id": 2, "sep_token_id": 3, "local_attention": 8}
    model = write_bert(
        folder / "model", kind, id2label={0: "bad", 1: "good"}, label2id={"bad": 0, "good": 1}, **special
    )
    data, output = write_texts(folder / "reviews.jsonl", ("bad", "good")), folder / "out"
    run(folder / "model", data, output, OPTIONS, RecordingContext(box_for(folder / "model")))
    names = {"tokens": "input_ids", "mask": "attention_mask", "label": "labels"}
    assert our_losses(output) == pytest.approx(losses_of_transformers(model, output, names), abs=1e-3)
    read = transformers.AutoModelForSequenceClassification.from_pretrained(output).eval()
    given = {"input_ids": torch.tensor([[2, 9, 11, 3]]), "attention_mask": torch.ones(1, 4, dtype=torch.int64)}
    with torch.no_grad():
        torch.testing.assert_close(read(**given).logits, model(**given).logits, atol=3e-3, rtol=1e-2)


@pytest.mark.long
def test_a_vit_gets_a_head_for_the_folders_of_pictures(folder: Path) -> None:
    model = write_vit(folder / "model")
    data, output = write_colours(folder / "colours"), folder / "out"
    made = run(folder / "model", data, output, OPTIONS, RecordingContext(box_for(folder / "model")))
    base = json.loads((output / ".finetune" / "base" / "latest.json").read_text())["file"]
    from safetensors.torch import load_file

    begun = load_file(output / ".finetune" / "base" / base)
    fresh = transformers.ViTForImageClassification(
        transformers.ViTConfig.from_pretrained(folder / "model", num_labels=3)
    ).eval()  # fmt: skip
    state = model.state_dict() | {name: begun[name] for name in ("classifier.weight", "classifier.bias")}
    fresh.load_state_dict(state)
    theirs = losses_of_transformers(fresh, output, {"image": "pixel_values", "label": "labels"})
    assert our_losses(output) == pytest.approx(theirs, abs=1e-3)
    assert made.after["accuracy"] == 1.0
    read = transformers.AutoModelForImageClassification.from_pretrained(output)
    assert read.config.id2label == {0: "blue", 1: "green", 2: "red"}
    preprocessing = find_picture_preprocessing(output)
    assert preprocessing is not None
    red = (folder / "colours" / "red" / "3.png").read_bytes()
    with torch.no_grad():
        logits = read(torch.from_numpy(preprocessing.array_of(red))[None]).logits
    assert preprocessing.predictions(logits.numpy())[0].label == "red"
    processor = json.loads((output / "preprocessor_config.json").read_text())
    assert (processor["size"], processor["image_mean"]) == ({"height": 16, "width": 16}, [0.5, 0.5, 0.5])


def test_a_model_of_several_classes_a_sample_is_refused(folder: Path) -> None:
    write_bert(folder / "model", num_labels=2)
    path = folder / "model" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "problem_type": "multi_label_classification"}))
    with pytest.raises(InvalidArgument, match=r"problem_type is 'multi_label_classification'; expected 'single_label"):
        choose_classes(open_model(folder / "model"), folder)


def test_data_of_other_classes_are_refused_with_updates_of_low_rank_and_wrong_rows_by_their_place(folder: Path) -> None:
    write_bert(folder / "model", num_labels=2)
    box, data = box_for(folder / "model"), folder / "reviews.jsonl"
    write_texts(data, ("a", "b", "c"))
    with pytest.raises(InvalidArgument, match="--lora trains no head, but classes that differ"):
        run(folder / "model", data, folder / "out", FinetuneOptions(lora=2, dev_ratio=0.1), RecordingContext(box))
    write_texts(data, ("LABEL_0", "LABEL_1"), 12)
    with pytest.raises(InvalidArgument, match=r"--held-out 0\.05 selects no records; expected a larger share"):
        run(folder / "model", data, folder / "few", FinetuneOptions(context=16), RecordingContext(box))
    for line, words in (
        ('{"text": "w1"}', r"reviews\.jsonl:1: no label; expected text and label"),
        ('{"text": " ", "label": 1}', r"reviews\.jsonl:1: no text; expected text and label"),
        ('{"text": "w1", "label": "a"}', "has only the class a; expected two or more"),
    ):
        data.write_text(line + "\n")
        with pytest.raises(InvalidArgument, match=words):
            run(folder / "model", data, folder / "out", OPTIONS, RecordingContext(box))
