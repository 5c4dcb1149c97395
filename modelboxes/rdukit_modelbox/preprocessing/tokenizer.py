"""The tokenizer of a data set: given as a ``tokenizer.json``, of plain bytes, or learned from the data."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from rdukit.errors import IllegalValue, InvalidArgument, NotFound
from rdukit.files.atomic import sha256_of
from rdukit_serving.text.token_bytes import byte_letters

FILE_NAME: Final = "tokenizer.json"
END_OF_TEXT: Final = "<|endoftext|>"
#: Names that vocabularies give to the end of a text, the likeliest first.
USUAL_ENDS: Final = (END_OF_TEXT, "</s>", "<|end_of_text|>", "<eos>", "<|im_end|>", "[SEP]")
#: Files beside a tokenizer.json that say which tokens are special.
CONFIG_NAMES: Final = ("tokenizer_config.json", "special_tokens_map.json")


@dataclass(frozen=True, slots=True)
class TextTokenizer:
    """A tokenizer and its special tokens."""

    tokenizer: Tokenizer
    #: What ``tokenizer.json`` holds, byte for byte.
    json: bytes
    end_of_text: str
    end_id: int
    pad_id: int
    begin_id: int | None
    #: Files to put beside it: name to content.
    companions: tuple[tuple[str, bytes], ...] = ()

    @property
    def vocabulary(self) -> int:
        """Every token id is below this, added tokens included."""
        return max(self.tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    @property
    def digest(self) -> str:
        """SHA-256 of the tokenizer and its special tokens."""
        return sha256_of(self.json + f"{self.end_id} {self.pad_id} {self.begin_id}".encode())


def load_tokenizer(path: Path, end_of_text: str = "") -> TextTokenizer:
    """A tokenizer from a ``tokenizer.json`` or a folder with one.

    Args:
        end_of_text: its end-of-text token; empty takes it from the configuration beside it, or a usual name.
    Raises:
        NotFound: the folder has no tokenizer.json.
        InvalidArgument: the file is not a tokenizer.
        IllegalValue: no such end-of-text token, or none can be told.
    """
    file = path / FILE_NAME if path.is_dir() else path
    if not file.is_file():
        raise NotFound(
            f"{path} has no {FILE_NAME}; legal: a {FILE_NAME} of the tokenizers library, or a folder with one"
        )
    content = file.read_bytes()
    try:
        tokenizer = Tokenizer.from_buffer(content)
    except Exception as cause:  # the library raises plain Exception
        raise InvalidArgument(f"{file} is not a {FILE_NAME} of the tokenizers library: {cause}") from cause
    # What it would pad or cut is for packing to decide.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    companions = [(name, file.with_name(name)) for name in (*CONFIG_NAMES, "config.json")]
    found = tuple((name, place.read_bytes()) for name, place in companions if place.is_file())
    special: dict[str, str] = {}
    for name, data in found:
        if name in CONFIG_NAMES:
            special = {**_special_tokens(file.with_name(name), data), **special}
    end = end_of_text or special.get("eos_token") or _usual_end(tokenizer, file)
    end_id = tokenizer.token_to_id(end)
    if end_id is None:
        raise IllegalValue(
            f"{file} has no token {end!r}; pass end_of_text with one of its tokens", parameter="end_of_text"
        )
    pad_id = tokenizer.token_to_id(special["pad_token"]) if "pad_token" in special else None
    begin_id = tokenizer.token_to_id(special["bos_token"]) if "bos_token" in special else None
    return TextTokenizer(tokenizer, content, end, end_id, end_id if pad_id is None else pad_id, begin_id, found)


def byte_level_tokenizer() -> TextTokenizer:
    """One token a byte, id = the byte's value, and 256 for the end of text; needs nothing from outside."""
    words = [*byte_letters(), END_OF_TEXT]
    tokenizer = Tokenizer(models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END_OF_TEXT])
    return own_tokenizer(tokenizer)


def learn_tokenizer(texts: Iterable[str], vocabulary: int) -> TextTokenizer:
    """Byte-level BPE learned from ``texts``: at most ``vocabulary`` tokens, the end of text included."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[END_OF_TEXT], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator(texts, trainer)
    return own_tokenizer(tokenizer)


def own_tokenizer(tokenizer: Tokenizer) -> TextTokenizer:
    """One of the two above, perhaps read back."""
    end_id = tokenizer.token_to_id(END_OF_TEXT)
    assert end_id is not None
    config = json.dumps({"eos_token": END_OF_TEXT, "tokenizer_class": "PreTrainedTokenizerFast"}, indent=2).encode()
    content = tokenizer.to_str(pretty=True).encode()
    return TextTokenizer(tokenizer, content, END_OF_TEXT, end_id, end_id, None, (("tokenizer_config.json", config),))


def _special_tokens(path: Path, data: bytes) -> dict[str, str]:
    try:
        value = json.loads(data)
    except ValueError as cause:
        raise InvalidArgument(f"{path} is not JSON: {cause}") from cause
    if not isinstance(value, dict):
        raise InvalidArgument(f"{path} is not a JSON object")
    named = {}
    for key in ("eos_token", "bos_token", "pad_token"):
        token = value.get(key)
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            named[key] = token
    return named


def _usual_end(tokenizer: Tokenizer, file: Path) -> str:
    for name in USUAL_ENDS:
        if tokenizer.token_to_id(name) is not None:
            return name
    raise IllegalValue(
        f"{file}: which token ends a text is not known; pass end_of_text, or put tokenizer_config.json with eos_token "
        f"beside it",
        parameter="end_of_text",
    )
