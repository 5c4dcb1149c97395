"""Hugging Face folders of small random models, data to fine-tune them, and the losses of transformers."""

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from rdukit_modelbox.preprocessing.token_dataset import load_token_dataset
from rdukit_modelbox.tasks.texts import TextData
from rdukit_modelbox.training.options import learning_rate

END, BEGIN = "<|end|>", "<|begin|>"
TEMPLATE = (
    "{% for message in messages %}" + BEGIN + "{{ message.role }}\n{{ message.content }}" + END + "\n{% endfor %}"
    "{% if add_generation_prompt %}" + BEGIN + "assistant\n{% endif %}"
)
CONTEXT = 48


def chats(count: int) -> list[dict[str, Any]]:
    """Chats of two turns each."""
    return [
        {
            "messages": [
                {"role": "user", "content": f"What is {n} and {n + 1}?"},
                {"role": "assistant", "content": f"It is {2 * n + 1}."},
                {"role": "user", "content": "Sure?"},
                {"role": "assistant", "content": "Yes."},
            ]
        }
        for n in range(count)
    ]  # fmt: skip


def write_tokenizer(folder: Path, texts: list[str]) -> int:
    """Write a byte-level tokenizer with a chat template, as ``save_pretrained`` does; returns its size."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=[END, BEGIN])
    tokenizer.train_from_iterator(texts, trainer)
    transformers: Any = importlib.import_module("transformers")

    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return int(tokenizer.get_vocab_size())


def write_model(folder: Path, kind: str, positions: int = 64) -> Any:
    """Write a small random model with its tokenizer; returns transformers' model."""
    transformers: Any = importlib.import_module("transformers")
    words = write_tokenizer(folder, [json.dumps(chat) for chat in chats(50)])
    ends = {"eos_token_id": 0, "bos_token_id": 0, "vocab_size": words}
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    if kind == "gpt2":
        configuration = transformers.GPT2Config(
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=positions,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            **ends,
        )
    elif kind == "mistral":
        configuration = transformers.MistralConfig(
            **small, num_key_value_heads=2, max_position_embeddings=positions, sliding_window=16, **ends
        )
    else:
        configuration = transformers.LlamaConfig(
            **small,
            num_key_value_heads=2,
            max_position_embeddings=positions,
            tie_word_embeddings=kind == "llama-tied",
            **ends,
        )
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(configuration, attn_implementation="eager").eval()
    model.save_pretrained(folder)
    (folder / "LICENSE.txt").write_text("Apache-2.0")
    return model


def write_data(folder: Path, count: int = 60) -> Path:
    path = folder / "talks.jsonl"
    path.write_text("".join(json.dumps(chat) + "\n" for chat in chats(count)))
    return path


def losses_of_transformers(model: Any, output: Path, lr: float, parameters: Callable[[Any], Any]) -> list[float]:
    """Train transformers' model with torch's AdamW on the same batches in the same order."""
    data = TextData(load_token_dataset(output / ".finetune" / "data" / "dataset"))
    report = json.loads((output / "finetune.json").read_text())
    size, total = report["asked"]["batch_size"], report["reached"]["steps"]
    optimizer = torch.optim.AdamW(parameters(model), lr=lr, betas=(0.9, 0.999), weight_decay=0.0)
    losses: list[float] = []
    epoch = 0
    while len(losses) < total:
        for tokens, labels in data.batches(size, 0, epoch, 0):
            if len(losses) == total:
                break
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(len(losses), total, lr, "linear", 0, 1 / total)
            logits = model(torch.from_numpy(np.asarray(tokens))).logits
            loss: Any = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(labels).flatten())
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters(model), 1.0)
            optimizer.step()
            losses.append(float(loss.detach()))
        epoch += 1
    return losses


def our_losses(output: Path) -> list[float]:
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line and "lr" in line]
