"""Small inputs for the vendor's public programs: checkpoints with random weights, tokenizers, data sets.

Run beside the libraries of ``requirements.txt``: ``python materials.py --out FOLDER --mnist FOLDER``. Everything is
seeded, so two runs make the same files.
"""

import argparse
import gzip
import json
import shutil
from pathlib import Path
from typing import Any, Final

import h5py  # type: ignore[import-untyped]
import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast, set_seed

SEED: Final = 7
LENGTH: Final = 64
VOCABULARY: Final = 320
#: Sizes that all tiny models share.
TINY: Final = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "vocab_size": VOCABULARY,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
    # Wide enough that the best logit mostly stands clear of the second in bf16; much wider, and attention is so sharp
    # that a rounding in the first layer decides the last one's.
    "initializer_range": 0.05,
    "torch_dtype": "float32",
}
#: Of the weights; chosen so that greedy generation does not end early.
_SEEDS: Final = {"llama": 0, "llama2": 0, "mistral": 2, "gemma": 2, "gpt2": 0}
MODELS: Final[dict[str, dict[str, Any]]] = {
    "llama": {"num_key_value_heads": 2, "tie_word_embeddings": False},
    # As many heads of keys as of queries: the program has high-density heuristics for any size of these.
    "llama2": {"num_key_value_heads": 4, "tie_word_embeddings": False},
    "mistral": {"num_key_value_heads": 2, "sliding_window": None, "tie_word_embeddings": False},
    "gemma": {
        "num_key_value_heads": 1,
        "head_dim": 16,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
    },
}
GPT2: Final = {
    "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": LENGTH, "vocab_size": VOCABULARY,
    "bos_token_id": 1, "eos_token_id": 1,
}  # fmt: skip
SENTENCES: Final = (
    "Once upon a time there was a little machine that learned to count.",
    "The tallest mountain is far away, and nobody has climbed it twice.",
    "SENTIMENT ANALYSIS: a quiet film that stays with you QUESTION: Is this sentence positive or negative?",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--mnist", type=Path, help="folder with the IDX files of MNIST's test set")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    for name, sizes in MODELS.items():
        make_checkpoint(args.out / name, name.rstrip("2"), {**TINY, **sizes}, tokenizer)
    make_checkpoint(args.out / "gpt2", "gpt2", GPT2, tokenizer)
    make_sequences(args.out / "sequences")
    prompts = "".join(json.dumps({"prompt": s, "completion": "positive"}) + "\n" for s in SENTENCES)
    (args.out / "prompts.jsonl").write_text(prompts)
    if args.mnist is not None:
        make_mnist(args.mnist, args.out / "mnist")


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer of ``VOCABULARY`` tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    names = ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", model_input_names=names
    )


def make_checkpoint(folder: Path, family: str, sizes: dict[str, Any], tokenizer: PreTrainedTokenizerFast) -> None:
    """Write a Hugging Face folder: configuration, random weights, tokenizer."""
    set_seed(_SEEDS[folder.name])
    config = AutoConfig.for_model(family, **sizes)
    model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def make_sequences(folder: Path) -> None:
    """Write token sequences that count up by a fixed step, which a tiny model learns in a few hundred steps.

    HDF5 files of ``input_ids`` and ``token_type_ids``, int32 ``[rows, LENGTH]``, as the vendor's data preparation
    writes them, and its metadata. Type 1 marks completion tokens, 0 prompt tokens.
    """
    random = np.random.default_rng(SEED)
    folder.mkdir(exist_ok=True)
    names = ("train_1_of_2", "train_2_of_2", "dev_1_of_1", "test_1_of_1")
    for name in names:
        starts = random.integers(2, VOCABULARY, size=(32, 1))
        ids = 2 + (starts + 3 * np.arange(LENGTH)) % (VOCABULARY - 2)
        types = np.ones_like(ids)
        types[:, : LENGTH // 4] = 0
        with h5py.File(folder / f"{name}.hdf5", "w") as file:
            file.create_dataset("input_ids", data=ids.astype(np.int32))
            file.create_dataset("token_type_ids", data=types.astype(np.int32))
    (folder / "metadata.yaml").write_text(
        f"max_seq_length: {LENGTH}\nvocab_size: {VOCABULARY}\ntoken_type_ids: true\n"
        "number_of_training_files: 2\nnumber_of_dev_files: 1\nnumber_of_test_files: 1\n"
        "max_batch_size_train: 8\nmax_batch_size_dev: 8\n"
    )


def make_mnist(source: Path, folder: Path) -> None:
    """Write real digits as the programs read them, from MNIST's test set: 8,000 to train on, 2,000 to test.

    ``MNIST/raw`` is what torchvision expects; the same files lie in ``folder`` itself, and once more without labels.
    """
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    images, labels = _idx(source, "t10k-images", 16), _idx(source, "t10k-labels", 8)
    for name, first, last in (("train", 0, 8_000), ("t10k", 8_000, 10_000)):
        count = last - first
        pictures = np.array([2051, count, 28, 28], ">i4").tobytes() + images[first * 784 : last * 784]
        classes = np.array([2049, count], ">i4").tobytes() + labels[first:last]
        for place in (raw, folder):
            (place / f"{name}-images-idx3-ubyte").write_bytes(pictures)
            (place / f"{name}-labels-idx1-ubyte").write_bytes(classes)
    shutil.copyfile(folder / "t10k-images-idx3-ubyte", folder / "inference-images-idx3-ubyte")


def _idx(folder: Path, word: str, header: int) -> bytes:
    (found,) = sorted(folder.glob(f"{word}*"))[:1]
    data = gzip.decompress(found.read_bytes()) if found.suffix == ".gz" else found.read_bytes()
    return data[header:]


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
