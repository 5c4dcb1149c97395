"""A text model in a device process: prompts in, pieces of text out, one text at a time."""

import select
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rdukit.errors import InvalidArgument, NotFound, RdukitError
from rdukit_serving.device.messages import MAX_PACKET_BYTES, LongPrompt, cut, decode, encode
from rdukit_serving.text.chat_template import TOKENIZER_FILE, companion
from rdukit_serving.text.constraints import Constraints, TextForm
from rdukit_serving.text.program import TextProgram, end_tokens
from rdukit_serving.text.sampling import Sampler, SamplingOptions, log_probabilities
from rdukit_serving.text.token_bytes import TextStream, TokenBytes

_VALUES_OF_A_PACKET: Final = 1024


def serve_text(box: socket.socket, name: str, pef: Path, checkpoint: Path | None) -> None:
    """Load and answer ``generate`` until the box stops.

    Raises:
        NotFound: no checkpoint, or none with a tokenizer. RdukitError: as ``TextProgram``.
    """
    if checkpoint is None:
        raise NotFound(
            "a text model needs a checkpoint: the folder that train made, or a file with a tokenizer beside it"
        )
    file = companion(checkpoint, TOKENIZER_FILE)
    if not file.is_file():
        raise NotFound(
            f"{file} is not there: a text model needs its tokenizer beside its parameters; train keeps the data set's "
            "there, and for a safetensors file put it into the same folder"
        )
    tokenizer = Tokenizer.from_file(str(file))
    with TextProgram(pef, checkpoint, name=name) as program:
        sizes = program.sizes
        # Plans and touches everything before the first caller waits.
        program.start([0]) if program.generates else program.embed([0])
        text = {
            "context": sizes.context, "prompt": sizes.prompt, "vocabulary": sizes.vocabulary,
            "generates": program.generates,
        }  # fmt: skip
        box.send(encode(kind="ready", text=text, properties=program.properties()))
        ends, token_bytes = end_tokens(checkpoint), TokenBytes(tokenizer)
        tokens = max(sizes.vocabulary, 1 + max(tokenizer.get_vocab().values()))
        constraints = Constraints(file.read_text(), tokens, ends)
        prompt = LongPrompt()
        while packet := box.recv(MAX_PACKET_BYTES):
            message = decode(packet)
            if message["kind"] == "stop":
                return
            try:
                if message["kind"] == "prompt":
                    prompt.add(message["at"], message["part"])
                    box.send(encode(kind="taken", number=message["number"]))
                elif message["kind"] == "generate":
                    text_prompt = message["prompt"] or prompt.take()
                    _Generation(box, program, tokenizer, ends, text_prompt, message, token_bytes, constraints).run()
                elif message["kind"] == "embed":
                    _embed(box, program, tokenizer, message["prompt"] or prompt.take())
            except RdukitError as error:
                box.send(encode(kind="refused", **error.body()))


def _embed(box: socket.socket, program: TextProgram, tokenizer: Tokenizer, text: str | Sequence[int]) -> None:
    tokens = tokenizer.encode(text).ids if isinstance(text, str) else list(text)
    values = program.embed(tokens)
    # In parts that fit into a packet.
    for at in range(0, len(values), _VALUES_OF_A_PACKET):
        box.send(encode(kind="values", values=[float(v) for v in values[at : at + _VALUES_OF_A_PACKET]]))
    box.send(encode(kind="embedded", tokens=len(tokens)))


def _tokens_of(tokenizer: Tokenizer, prompt: str | Sequence[int], is_rendered: bool) -> list[int]:
    """Return the tokens of a prompt; a rendered one gets no special tokens beside its own."""
    if not isinstance(prompt, str):
        return list(prompt)
    tokens: list[int] = tokenizer.encode(prompt, add_special_tokens=not is_rendered).ids
    return tokens


class _Generation:
    """Generation of one text."""

    def __init__(
        self, box: socket.socket, program: TextProgram, tokenizer: Tokenizer, ends: frozenset[int],
        prompt: str | Sequence[int], message: Mapping[str, Any], token_bytes: TokenBytes,
        constraints: Constraints,
    ) -> None:  # fmt: skip
        self._box = box
        self._program = program
        self._tokenizer = tokenizer
        self._text = prompt if isinstance(prompt, str) else None
        self._prompt = _tokens_of(tokenizer, prompt, message["is_rendered"])
        options = SamplingOptions(**message["sampling"])
        program.check_tokens([token for token, _ in options.bias], "logit_bias")
        program.check_tokens(self._prompt, "prompt")
        self._ends = frozenset() if options.ignore_eos else ends
        form = message["form"]
        self._sampler = Sampler(options, self._prompt, None if form is None else constraints.find(TextForm(*form)))
        skips = not message["keeps_special"]
        self._stream = TextStream(
            lambda tokens: str(tokenizer.decode(list(tokens), skip_special_tokens=skips)), message["stop"]
        )
        room = program.sizes.context - len(self._prompt)
        if room < 1 or not self._prompt:
            raise InvalidArgument(
                f"prompt: it has {len(self._prompt)} tokens; legal: 1 to {program.sizes.context - 1}", field="prompt"
            )
        self._most: int = room if message["max_tokens"] is None else min(message["max_tokens"], room)
        #: How many of the likeliest tokens are told with each; None: nothing of probabilities.
        self._top: int | None = message["top_logprobs"]
        self._echo: bool = message["echo"]
        self._bytes = token_bytes

    def run(self) -> None:
        """Generate, telling each piece; ends with ``done``."""
        made, reason = 0, "length"
        logits_V = self._read_prompt()
        if logits_V is None:
            self._most, reason = 0, "cancelled"
        for position in range(len(self._prompt), len(self._prompt) + self._most):
            assert logits_V is not None
            token = self._sampler.choose(logits_V)
            if token in self._ends:
                reason = "stop"
                break
            made += 1
            piece = self._stream.push(token)
            self._box.send(encode(kind="piece", text=piece, **self._chances(token, logits_V)))
            if self._stream.stopped_by is not None or self._sampler.is_over:
                reason = "stop"
                break
            if self._is_cancelled():
                reason = "cancelled"
                break
            if made < self._most:
                logits_V = self._program.step(token, position)
        self._box.send(
            encode(
                kind="done", text=self._stream.finish(), reason=reason, prompt_tokens=len(self._prompt),
                completion_tokens=made, stop_sequence=self._stream.stopped_by,
            )
        )  # fmt: skip

    def _read_prompt(self) -> NDArray[np.float32] | None:
        """Return the logits [V] after the prompt, echoed first if asked for; None if the caller went away."""
        if not self._echo:
            return self._program.start(self._prompt)
        text = str(self._tokenizer.decode(self._prompt)) if self._text is None else self._text
        for _, part in cut(text):
            self._box.send(encode(kind="piece", text=part))
        if self._top is None:
            return self._program.start(self._prompt)
        # What follows each token is wanted, and reading a prompt at once tells only what follows its last one.
        first, *others = self._prompt
        logits_V = self._program.start([first])
        self._box.send(encode(kind="piece", text="", token=self._told(first), logprob=None, top=[]))
        for position, token in enumerate(others, 1):
            if self._is_cancelled():
                return None
            self._box.send(encode(kind="piece", text="", **self._chances(token, logits_V)))
            logits_V = self._program.step(token, position)
        return logits_V

    def _chances(self, token: int, logits_V: NDArray[np.float32]) -> dict[str, Any]:
        if self._top is None:
            return {}
        logs_V = log_probabilities(logits_V)
        likeliest = np.argsort(-logs_V, kind="stable")[: self._top]
        return {
            "token": self._told(token),
            "logprob": float(logs_V[token]),
            "top": [[self._told(int(each)), float(logs_V[each])] for each in likeliest],
        }

    def _told(self, token: int) -> str:
        """Return its bytes as they cross to the server."""
        return self._bytes.of(token).hex()

    def _is_cancelled(self) -> bool:
        """Return whether a message came while a text is made: only a cancel, a stop or the end can."""
        return bool(select.select([self._box], [], [], 0)[0])
