"""The tokenizer of a data set: given as a ``tokenizer.json``, of bytes, of codons, or learned.

It runs on all cores while the caller packs the tokens of the batch before.
"""

import json
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
from tokenizers import Encoding, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from rdukit.errors import IllegalValue, InvalidArgument, NotFound
from rdukit.files.atomic import sha256_of
from rdukit_modelbox.preprocessing.articles import ArticlePolicy, Pieces, cut_pieces, join_tokens, make_decoder
from rdukit_modelbox.preprocessing.packing import Tokens
from rdukit_serving.text.token_bytes import byte_letters
from rdukit_zoo.datasets.genes import CODONS, SPECIAL_TOKENS

FILE_NAME: Final = "tokenizer.json"
END_OF_TEXT: Final = "<|endoftext|>"
#: Names that vocabularies give to the end of a text, the likeliest first.
USUAL_ENDS: Final = (END_OF_TEXT, "</s>", "<|end_of_text|>", "<eos>", "<|im_end|>", "[SEP]")
#: Files next to tokenizer.json that list special tokens.
CONFIG_NAMES: Final = ("tokenizer_config.json", "special_tokens_map.json")


@dataclass(frozen=True, slots=True)
class TextTokenizer:
    """A tokenizer and its special tokens."""

    tokenizer: Tokenizer
    #: Content of ``tokenizer.json``, byte for byte.
    json: bytes
    end_of_text: str
    end_id: int
    pad_id: int
    begin_id: int | None
    #: Files to write next to it: name to content.
    companions: tuple[tuple[str, bytes], ...] = ()

    @property
    def vocabulary(self) -> int:
        """Return a number that every token id is below, added tokens included."""
        return max(self.tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    @property
    def digest(self) -> str:
        """SHA-256 of the tokenizer and its special tokens."""
        return sha256_of(self.json + f"{self.end_id} {self.pad_id} {self.begin_id}".encode())


def load_tokenizer(path: Path, end_of_text: str = "") -> TextTokenizer:
    """Return a tokenizer from a ``tokenizer.json`` or a folder with one.

    Args:
        end_of_text: its end-of-text token; empty: from the configuration next to it, or a usual name.
    Raises:
        NotFound: the folder has no tokenizer.json.
        InvalidArgument: the file is not a tokenizer.
        IllegalValue: the tokenizer lacks this end-of-text token, or no usual name matches.
    """
    file = path / FILE_NAME if path.is_dir() else path
    if not file.is_file():
        raise NotFound(
            f"{path} has no {FILE_NAME}; expected a {FILE_NAME} of the tokenizers library, or a folder with one"
        )
    content = file.read_bytes()
    try:
        tokenizer = Tokenizer.from_buffer(content)
    except Exception as cause:  # the library raises plain Exception
        raise InvalidArgument(f"{file} is not a {FILE_NAME} of the tokenizers library: {cause}") from cause
    # Padding and cutting are left to packing.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    companions = [(name, file.with_name(name)) for name in (*CONFIG_NAMES, "chat_template.jinja", "config.json")]
    found = tuple((name, place.read_bytes()) for name, place in companions if place.is_file())
    special: dict[str, str] = {}
    for name, data in found:
        if name in CONFIG_NAMES:
            special = {**_special_tokens(file.with_name(name), data), **special}
    end = end_of_text or special.get("eos_token") or _usual_end(tokenizer, file)
    end_id = tokenizer.token_to_id(end)
    if end_id is None:
        raise IllegalValue(
            f"{file} has no token {end!r}; expected one of its tokens as eos_token in tokenizer_config.json, or as "
            "end_of_text",
            parameter="end_of_text",
        )
    pad_id = tokenizer.token_to_id(special["pad_token"]) if "pad_token" in special else None
    begin_id = tokenizer.token_to_id(special["bos_token"]) if "bos_token" in special else None
    return TextTokenizer(tokenizer, content, end, end_id, end_id if pad_id is None else pad_id, begin_id, found)


def byte_level_tokenizer() -> TextTokenizer:
    """Make a tokenizer with one token per byte (its id is the byte's value) and 256 for the end of text.

    Needs nothing from outside.
    """
    words = [*byte_letters(), END_OF_TEXT]
    tokenizer = Tokenizer(models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END_OF_TEXT])
    return own_tokenizer(tokenizer)


def learn_tokenizer(texts: Iterable[str], vocabulary: int) -> TextTokenizer:
    """Learn a byte-level BPE from ``texts``: at most ``vocabulary`` tokens, the end of text included."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[END_OF_TEXT], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator(texts, trainer)
    return own_tokenizer(tokenizer)


def codon_tokenizer() -> TextTokenizer:
    """Make GenSLM's tokenizer: five special tokens and the 64 codons, a word each.

    Codons may have spaces between them or none, and small letters. Other codons become ``[UNK]``. A gene ends with
    ``[SEP]``: our choice, since GenSLM's own file names no end.
    """
    unknown, _, separator, padding, _ = SPECIAL_TOKENS
    vocabulary = {token: index for index, token in enumerate((*SPECIAL_TOKENS, *CODONS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Replace(base, base.upper()) for base in "acgt"])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex("[ACGT]{3}"), "isolated")]
    )
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return own_tokenizer(tokenizer, separator, padding)


def own_tokenizer(tokenizer: Tokenizer, end_of_text: str = END_OF_TEXT, padding: str = END_OF_TEXT) -> TextTokenizer:
    """Wrap one of the tokenizers above, perhaps read back."""
    end_id, pad_id = tokenizer.token_to_id(end_of_text), tokenizer.token_to_id(padding)
    assert end_id is not None and pad_id is not None
    named = {"eos_token": end_of_text, "tokenizer_class": "PreTrainedTokenizerFast"}
    if padding != end_of_text:
        named["pad_token"] = padding
    content = tokenizer.to_str(pretty=True).encode()
    config = json.dumps(named, indent=2).encode()
    return TextTokenizer(tokenizer, content, end_of_text, end_id, pad_id, None, (("tokenizer_config.json", config),))


def _special_tokens(path: Path, data: bytes) -> dict[str, str]:
    expected = "expected a JSON object, as transformers writes it"
    try:
        value = json.loads(data)
    except UnicodeDecodeError as cause:
        raise InvalidArgument(f"{path} is damaged: it is not UTF-8; {expected}") from cause
    except (ValueError, RecursionError) as cause:
        raise InvalidArgument(f"{path} is damaged: {cause}; {expected}") from cause
    if not isinstance(value, dict):
        raise InvalidArgument(f"{path} is damaged: it holds no JSON object; {expected}")
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
        f"{file}: the token that ends a text is unknown; pass end_of_text, or add tokenizer_config.json with "
        "eos_token next to it",
        parameter="end_of_text",
    )


#: Text per tokenizer call: enough for all cores, and little enough for the memory of its encodings.
BATCH_BYTES: Final = 1 << 20
BATCH_RECORDS: Final = 8192
#: Largest number of running and waiting batches.
AHEAD: Final = 2


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Tokens of ``records`` records of an output file."""

    file: int
    tokens: Tokens
    records: int


class RecordTokenizer:
    """Tokenizes batches of records in order. Close it when done."""

    def __init__(self, tokenizer: TextTokenizer, policy: ArticlePolicy) -> None:
        self._tokenizer = tokenizer
        self._policy = policy
        self._decoder = make_decoder(policy)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenize")

    def close(self) -> None:
        """Wait for running batches and drop waiting ones."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def tokens_of(self, batches: Iterable[tuple[int, list[bytes]]]) -> Iterator[TokenBatch]:
        """Return the tokens of each batch, given with its output file."""
        pending: deque[tuple[int, int, Pieces, Future[list[Encoding]]]] = deque()
        for file, batch in batches:
            pieces = cut_pieces(self._decode(batch), self._policy)
            # The library lets go of Python's lock while it encodes.
            encoding = self._thread.submit(self._tokenizer.tokenizer.encode_batch_fast, pieces.texts)
            pending.append((file, len(batch), pieces, encoding))
            if len(pending) > AHEAD:
                yield self._join(*pending.popleft())
        while pending:
            yield self._join(*pending.popleft())

    def _decode(self, batch: list[bytes]) -> list[Any]:
        records: list[Any] = self._decoder.decode_lines(b"\n".join(batch))
        return records

    def _join(self, file: int, records: int, pieces: Pieces, encoding: "Future[list[Encoding]]") -> TokenBatch:
        ids = [found.ids for found in encoding.result()]
        tokens = join_tokens(pieces, ids, self._tokenizer.end_id, self._tokenizer.begin_id)
        return TokenBatch(file, tokens, records)


def texts_of(records: Iterable[bytes], policy: ArticlePolicy) -> Iterator[str]:
    """Return the texts of records, for learning a tokenizer."""
    decoder: msgspec.json.Decoder[Any] = make_decoder(policy)
    for record in records:
        yield from cut_pieces([decoder.decode(record)], policy).texts
