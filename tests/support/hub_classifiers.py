"""Hugging Face folders of small random classifiers, and labelled texts and pictures to fine-tune them."""

import importlib
import json
import random
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, processors

WORDS = [f"w{number}" for number in range(300)]


def write_bert(folder: Path, kind: str = "Bert", **named: Any) -> Any:
    """Write a small random BERT, or one of its family, that classifies, with a tokenizer of whole words."""
    transformers: Any = importlib.import_module("transformers")
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    configuration = getattr(transformers, f"{kind}Config")(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, max_position_embeddings=32,
        vocab_size=len(vocabulary), hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **named,
    )  # fmt: skip
    torch.manual_seed(3)
    model = getattr(transformers, f"{kind}ForSequenceClassification")(configuration).eval()
    model.save_pretrained(folder)
    return model


def write_vit(folder: Path, **named: Any) -> Any:
    """Write a small random ViT, with ten unnamed classes by default."""
    transformers: Any = importlib.import_module("transformers")
    configuration = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=16, patch_size=8,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **(named or {"num_labels": 10}),
    )  # fmt: skip
    torch.manual_seed(3)
    model = transformers.ViTForImageClassification(configuration).eval()
    model.save_pretrained(folder)
    return model


def write_texts(path: Path, labels: tuple[str, ...], count: int = 64) -> Path:
    """Write texts as JSON lines, whose words say their class."""
    draw = random.Random(0)
    lines = []
    for _ in range(count):
        label = draw.randrange(len(labels))
        words = " ".join(draw.choice(WORDS[100 * label : 100 * label + 5]) for _ in range(8))
        lines.append(json.dumps({"text": words, "label": labels[label]}))
    path.write_text("\n".join(lines) + "\n")
    return path


def write_colours(folder: Path) -> Path:
    """Write pictures of three classes, of different sizes."""
    for kind, colour in (("blue", (0, 0, 200)), ("green", (0, 200, 0)), ("red", (200, 0, 0))):
        (folder / kind).mkdir(parents=True)
        for number in range(16):
            Image.new("RGB", (20 + number, 30 - number), colour).save(folder / kind / f"{number}.png")
    return folder
