"""The loop of a text model: prompts in, pieces of text out, for as many texts at once as its caches have rows.

Before each run of the device, the server's messages are read; after it, the run's results are sent.
"""

import contextlib
import gc
import itertools
import json
import logging
import select
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rdukit.errors import InvalidArgument, NotFound, Overloaded, RdukitError, RuntimeFault
from rdukit.pef.checkpoint_files import check_tokenizer
from rdukit.settings import resolve
from rdukit_serving.device.messages import MAX_PACKET_BYTES, LongPrompt, Prompt, decode, encode
from rdukit_serving.settings import SPECULATION
from rdukit_serving.text.chat_template import TOKENIZER_FILE, companion
from rdukit_serving.text.constraints import Constraints
from rdukit_serving.text.draft import DraftModel
from rdukit_serving.text.generation import Generation, ModelTokens
from rdukit_serving.text.generation_config import end_tokens, forced_tokens, sampling_defaults
from rdukit_serving.text.program import TextProgram
from rdukit_serving.text.rows import RowTable, reads_next
from rdukit_serving.text.speculation import share_places
from rdukit_serving.text.token_bytes import TokenBytes

logger = logging.getLogger(__name__)

_VALUES_OF_A_PACKET: Final = 1024
#: Bytes of events that are sent together.
_EVENTS_BYTES: Final = MAX_PACKET_BYTES - 1024


def tokenizer_file(checkpoint: Path) -> Path:
    """Return the tokenizer next to a checkpoint, checked against the one of its training if that is recorded.

    Raises:
        NotFound: there is no tokenizer. InvalidArgument: the tokenizer is another one, or damaged.
    """
    file = companion(checkpoint, TOKENIZER_FILE)
    if not file.is_file():
        raise NotFound(
            f"{file} is missing; a text model needs its tokenizer next to its parameters. train copies the data "
            "set's; for a safetensors file, put it into the same folder"
        )
    check_tokenizer(checkpoint, file)
    return file


def read_tokens(file: Path, checkpoint: Path, program: TextProgram) -> ModelTokens:
    """Return the tokens of a tokenizer, with the checkpoint's end tokens."""
    tokenizer, ends = Tokenizer.from_file(str(file)), end_tokens(checkpoint)
    tokens = max(program.sizes.vocabulary, 1 + max(tokenizer.get_vocab().values()))
    constraints = Constraints(file.read_text(), tokens, ends)
    return ModelTokens(
        tokenizer, TokenBytes(tokenizer), constraints, ends, sampling_defaults(checkpoint), forced_tokens(checkpoint)
    )


def tell_ready(
    box: socket.socket, program: TextProgram, draft: DraftModel | None = None, descriptors: Sequence[int] = ()
) -> None:
    """Report to the box that texts can be generated, and the draft model; ``descriptors`` are of memory."""
    # Present objects are excluded from collections, which would delay every text by 0.1 s.
    gc.collect()
    gc.freeze()
    text = {**program.sizes.figures(), "generates": program.generates}
    properties = program.properties()
    if draft is not None:
        properties |= {"draft": draft.name, "draft_kernels": draft.kernels}
    socket.send_fds(box, [encode(kind="ready", text=text, properties=properties)], descriptors)


class TextLoop:
    """The texts in progress, all of one model; ``ExpertLoop`` has those of several."""

    def __init__(
        self, box: socket.socket, program: TextProgram, vocabulary: ModelTokens | None, draft: DraftModel | None = None
    ) -> None:  # fmt: skip
        self._box, self._program, self._tokens = box, program, vocabulary
        self._rows = RowTable(program.sizes.texts)
        #: By number, the oldest first.
        self._made: dict[int, Generation] = {}
        #: Long prompts, and long options, of which parts are still to come.
        self._prompts: dict[int, LongPrompt] = {}
        self._options: dict[int, LongPrompt] = {}
        self._events: list[str] = []
        self._has_read = False
        self._most_guessed, self._draft = resolve(SPECULATION), draft

    def serve(self) -> None:
        """Generate texts until the box stops or is gone."""
        while self._receive():
            if self._made:
                self._run()
            self._send()

    def _receive(self) -> bool:
        """Read all present messages, and wait for one if there is no text to generate; False at the end."""
        while not self._made or select.select([self._box], [], [], 0)[0]:
            self._send()
            if not self._receive_one():
                return False
        return True

    def _receive_one(self) -> bool:
        """Take a message; False at the end."""
        packet = self._box.recv(MAX_PACKET_BYTES)
        if not packet or (message := decode(packet))["kind"] == "stop":
            return False
        number: int = message["number"]
        try:
            self._take(number, message)
        except Exception as error:  # noqa: BLE001 a text's boundary: what is wrong with it harms no other
            self._tell(number, kind="refused", **told_error(error).body())
        return True

    def _vocabulary(self, message: Mapping[str, Any]) -> ModelTokens:
        """Return the tokens of the model that a request means."""
        assert self._tokens is not None
        return self._tokens

    def _weights(self, message: Mapping[str, Any]) -> str:
        """Name the weights of a request's text: only texts of equal weights share prefixes."""
        return ""

    def _adapter(self, message: Mapping[str, Any]) -> int | None:
        """Return the number of the request's adapter; None: no adapter."""
        return None

    def _turn(self) -> list[Generation]:
        """Return the texts of the next run, the oldest first."""
        return list(self._made.values())

    def _take(self, number: int, message: dict[str, Any]) -> None:
        if message["kind"] in {"prompt", "options"}:
            parts = self._prompts if message["kind"] == "prompt" else self._options
            parts.setdefault(number, LongPrompt()).add(message["at"], message["part"])
            self._tell(number, kind="taken")
            return
        long, options = self._prompts.pop(number, None), self._options.pop(number, None)
        if options is not None and message.get("has_more_options"):
            message |= json.loads(str(options.take()))
        if message["kind"] == "cancel":
            if number in self._made:
                self._made[number].end("cancelled")
                self._free_ended()
            elif long is not None or options is not None:
                self._tell(number, kind="done", text="", reason="cancelled", prompt_tokens=0, completion_tokens=0)
            return
        prompt = message["prompt"] if long is None else long.take()
        if message["kind"] == "embed":
            self._embed(number, prompt, message)
        elif not self._program.generates:
            raise InvalidArgument("this model generates no text; expected /v1/embeddings")
        elif not self._rows.has_free:
            raise Overloaded(f"{self._program.sizes.texts} texts are being generated, which is the limit")
        else:
            self._begin(prompt, message)

    def _begin(self, prompt: Prompt, message: dict[str, Any]) -> None:
        sizes, text = self._program.sizes, self._new_text(prompt, message)
        # An encoder's source in a row is useless for another source.
        may_keep = not text.is_scored and not sizes.source and not sizes.frames
        place = self._rows.take(text.prompt, may_keep, self._weights(message))
        if place.source is not None:
            try:
                self._program.copy(place.source, place.row.number)
                if self._draft is not None:
                    self._draft.copy(place.source, place.row.number)
            except BaseException:
                place.row.tokens = []
                self._rows.release(place.row)
                raise
        text.begin(place.row, place.kept)
        self._made[text.number] = text

    def _new_text(self, prompt: Prompt, message: dict[str, Any]) -> Generation:
        """Return the text that a request asks for."""
        adapter = self._adapter(message)
        return Generation(prompt, message, self._vocabulary(message), self._program.sizes, self._tell, adapter)

    def _read(self, text: Generation, part: Sequence[int]) -> NDArray[np.float32]:
        """Read the next part of a text's prompt and return the logits [V] after it."""
        assert text.row is not None
        return self._program.read(text.row.number, part, len(text.row.tokens), text.adapter)

    def _run(self) -> None:
        """Run the device once: for a part of a prompt, or for a token of each text whose prompt is read."""
        texts = self._turn()
        self._has_read = reads_next([text.is_reading for text in texts], self._has_read)
        if self._has_read:
            text = next(text for text in texts if text.is_reading)
            made = sum(not text.is_reading for text in texts)
            part = text.part(self._program.part_length(made))
            with self._refusing(text):
                text.take_part(part, self._read(text, part))
        else:
            making = [text for text in texts if not text.is_reading]
            written = [text.written(tried) for text, tried in zip(making, self._guess(making), strict=True)]
            logits = self._program.advance(*zip(*itertools.chain(*written), strict=True))
            ends = itertools.accumulate(map(len, written))
            for text, end, each in zip(making, ends, written, strict=True):
                with self._refusing(text):
                    text.take(logits[end - len(each) : end])
        self._free_ended()

    def _guess(self, making: Sequence[Generation]) -> list[int]:
        """Return the number of speculative tokens to try for each text."""
        if not self._most_guessed:
            return [0] * len(making)
        draft = self._draft
        outlooks = [text.guess(self._most_guessed, draft is not None) for text in making]
        draft_seconds = 0.0 if draft is None else draft.seconds(outlooks)
        counts = share_places(outlooks, self._program.sizes.widths, self._program.seconds, draft_seconds)
        if draft is not None:
            drafted = [text for text in zip(making, counts, outlooks, strict=True) if text[2].is_drafted and text[1]]
            try:
                draft.propose([(text, count) for text, count, _ in drafted])
            except RuntimeFault as error:
                logger.warning("texts continue without their draft: %s", error)
                self._draft = None
        return counts

    def _free_ended(self) -> None:
        for number in [number for number, text in self._made.items() if text.is_over]:
            row = self._made.pop(number).row
            assert row is not None
            self._rows.release(row)

    @contextlib.contextmanager
    def _refusing(self, text: Generation) -> Iterator[None]:
        """End a text, and only it, if its processing fails."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 a text's boundary
            text.is_over = True
            if text.row is not None:
                text.row.tokens = []  # nobody begins where something went wrong
            self._tell(text.number, kind="refused", **told_error(error).body())

    def _embed(self, number: int, prompt: Prompt, message: Mapping[str, Any]) -> None:
        tokens = self._vocabulary(message).tokens_of(prompt)
        values = self._program.embed(tokens)
        # In parts that fit into a packet.
        for at in range(0, len(values), _VALUES_OF_A_PACKET):
            self._tell(number, kind="values", values=[float(v) for v in values[at : at + _VALUES_OF_A_PACKET]])
        self._tell(number, kind="embedded", tokens=len(tokens))

    def _tell(self, number: int, **event: object) -> None:
        entry = {"number": number, **event}
        text = json.dumps(entry)
        if len(text) > _EVENTS_BYTES:
            text = json.dumps({key: value for key, value in entry.items() if len(repr(value)) < 4096})
        self._events.append(text)

    def _send(self) -> None:
        """Send the events so far, in as few packets as possible."""
        for packet in packets_of(self._events):
            self._box.send(packet)
        self._events = []


def told_error(error: Exception) -> RdukitError:
    """Return the error for a caller; unexpected errors are also logged."""
    if isinstance(error, RdukitError):
        return error
    logger.error("a text failed", exc_info=error)
    return RuntimeFault(f"the model failed on this text: {type(error).__name__}; the log of its process has more")


def packets_of(events: Sequence[str]) -> list[bytes]:
    """Return events as packets, in order."""
    packets: list[list[str]] = []
    size = _EVENTS_BYTES
    for event in events:
        size += len(event) + 2
        if size > _EVENTS_BYTES:
            packets.append([])
            size = len(event)
        packets[-1].append(event)
    return [f'{{"kind": "events", "events": [{", ".join(packet)}]}}'.encode() for packet in packets]
