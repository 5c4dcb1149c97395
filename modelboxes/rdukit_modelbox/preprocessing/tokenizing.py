"""Records → tokens, with the tokenizer on all cores while this thread packs what it made before."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from tokenizers import Encoding

from rdukit_modelbox.preprocessing.articles import ArticlePolicy, Pieces, cut_pieces, join_tokens, make_decoder
from rdukit_modelbox.preprocessing.packing import Tokens
from rdukit_modelbox.preprocessing.tokenizer import TextTokenizer

#: Text handed to the tokenizer at once: enough for all cores, little enough for the memory that encodings take.
BATCH_BYTES: Final = 1 << 20
BATCH_RECORDS: Final = 8192
#: Batches that are being tokenized or wait for it.
AHEAD: Final = 2


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Tokens of so many records of an output file."""

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
        """Wait for what runs and forget what waits."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def tokens_of(self, batches: Iterable[tuple[int, list[bytes]]]) -> Iterator[TokenBatch]:
        """The tokens of each batch, given with its output file."""
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
    """The texts of records, for learning a tokenizer."""
    decoder: msgspec.json.Decoder[Any] = make_decoder(policy)
    for record in records:
        yield from cut_pieces([decoder.decode(record)], policy).texts
