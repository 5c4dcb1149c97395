"""Texts of several experts in one device process: they share its PEF, kernels and caches, but not weights.

A run serves one expert, and the adapters of its weights. Experts with texts take turns of several runs; between two
turns the program points to other parameters, without copies. On the device it would copy, which the server counts
(``tiers.py``).
"""

import select
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rdukit.errors import InvalidArgument, RdukitError, Unavailable
from rdukit.files.atomic import sha256_of_file
from rdukit_runtime.engine.parameter_sets import ParameterSet
from rdukit_serving.device.messages import Prompt
from rdukit_serving.device.prepared_weights import WeightsReader
from rdukit_serving.text.chat_template import check_draft_tokens
from rdukit_serving.text.draft import DraftModel, load_draft
from rdukit_serving.text.generation import Generation, ModelTokens
from rdukit_serving.text.generation_config import end_tokens, forced_tokens, known_tokens, sampling_defaults
from rdukit_serving.text.loop import TextLoop, read_tokens, tell_ready, tokenizer_file
from rdukit_serving.text.program import TextProgram
from rdukit_serving.text.rows import choose_turn


def serve_experts(box: socket.socket, name: str, pef: Path, draft: tuple[Path, Path] | None = None) -> None:
    """Load a PEF and generate texts with the experts that the box loads, until it stops.

    ``draft``: PEF and checkpoint of the draft model for all texts.

    Raises:
        RdukitError: as ``TextProgram``. InvalidArgument: the draft is compiled for other texts, or for smaller sizes.
    """
    with ExitStack() as loaded:
        program = loaded.enter_context(TextProgram(pef, None, name=name))
        program.warm_up()
        guessing = None if draft is None else load_draft(loaded, *draft, program.sizes, name)
        tell_ready(box, program, guessing)
        ExpertLoop(box, program, guessing).serve()


@dataclass(frozen=True, slots=True)
class LoadedExpert:
    """An expert whose weights are in memory."""

    name: str
    #: Names the weights: another checkpoint under the same name has another.
    weights: str
    parameters: ParameterSet
    tokens: ModelTokens
    #: Number of tokens of its tokenizer; None: as many as the model.
    known: int | None
    #: Adapters of its weights, by number.
    adapters: tuple[str, ...] = ()


class ExpertLoop(TextLoop):
    """The texts in progress, of several experts."""

    def __init__(self, box: socket.socket, program: TextProgram, draft: DraftModel | None = None) -> None:
        super().__init__(box, program, None, draft)
        #: Model whose tokens each expert's must equal.
        self._draft_checkpoint = None if draft is None else draft.checkpoint
        self._reader = WeightsReader(program.pef)
        #: Loads in progress, by their number.
        self._loading: dict[int, Mapping[str, Any]] = {}
        self._experts: dict[str, LoadedExpert] = {}
        #: The expert of each text.
        self._expert_of: dict[int, str] = {}
        #: Expert whose parameters the program uses, and its runs so far.
        self._current = ""
        self._runs = 0
        #: Tokens and end tokens by the tokenizer's digest: experts of one family share them.
        self._known_tokens: dict[tuple[object, ...], ModelTokens] = {}

    def _receive(self) -> bool:
        while True:
            self._send()
            wait = 0 if self._made else None
            box, weights = self._box.fileno(), self._reader.fileno()
            readable = select.select([box, weights], [], [], wait)[0]
            if weights in readable:
                self._take_weights()
            if box in readable and not self._receive_one():
                return False
            if not readable and self._made:
                return True

    def _take(self, number: int, message: dict[str, Any]) -> None:
        kind = message["kind"]
        if kind == "load":
            self._loading[number] = message
            self._reader.ask(number, Path(message["checkpoint"]), Path(message["file"]), _adapters_of(message))
        elif kind == "unload":
            self._unload(message["expert"])
            self._tell(number, kind="unloaded")
        else:
            super()._take(number, message)

    def _take_weights(self) -> None:
        for number, parameters, error in self._reader.take():
            message = self._loading.pop(number)
            try:
                if error is not None:
                    raise error
                assert parameters is not None
                name, checkpoint = message["expert"], Path(message["checkpoint"])
                tokens, known = self._tokens_of(checkpoint), known_tokens(checkpoint)
                self._unload(name)
                adapters = tuple(_adapters_of(message))
                self._experts[name] = LoadedExpert(name, message["file"], parameters, tokens, known, adapters)
                self._tell(number, kind="loaded")
            except RdukitError as failure:
                self._tell(number, kind="refused", **failure.body())

    def _tokens_of(self, checkpoint: Path) -> ModelTokens:
        file = tokenizer_file(checkpoint)
        ends, forced = end_tokens(checkpoint), forced_tokens(checkpoint)
        key = sha256_of_file(file), ends, forced, *sampling_defaults(checkpoint).items()
        if key not in self._known_tokens:
            if self._draft_checkpoint is not None:
                check_draft_tokens(checkpoint, self._draft_checkpoint)
            self._known_tokens[key] = read_tokens(file, checkpoint, self._program)
        return self._known_tokens[key]

    def _unload(self, name: str) -> None:
        """Unload the weights of an expert; its only remaining texts are cancelled ones."""
        expert = self._experts.pop(name, None)
        if expert is None:
            return
        for number in [number for number, text in self._made.items() if self._expert_of[number] == name]:
            self._made[number].end("cancelled")
        self._free_ended()
        if self._current == name:
            self._program.use(None)
            self._current = ""
        expert.parameters.close()

    def _expert(self, message: Mapping[str, Any]) -> LoadedExpert:
        expert = self._experts.get(message["expert"])
        if expert is None:
            raise Unavailable(f"expert {message['expert']!r} is not loaded; ask again")
        return expert

    def _vocabulary(self, message: Mapping[str, Any]) -> ModelTokens:
        return self._expert(message).tokens

    def _weights(self, message: Mapping[str, Any]) -> str:
        return f"{self._expert(message).weights} {message['adapter']}"

    def _adapter(self, message: Mapping[str, Any]) -> int | None:
        return self._expert(message).adapters.index(message["adapter"]) if message["adapter"] else None

    def _begin(self, prompt: Prompt, message: dict[str, Any]) -> None:
        self._expert_of[message["number"]] = self._expert(message).name
        super()._begin(prompt, message)

    def _embed(self, number: int, prompt: Prompt, message: Mapping[str, Any]) -> None:
        if message["adapter"]:
            raise InvalidArgument(f"an adapter computes no vectors; use its expert, {message['expert']}")
        self._use(self._expert(message).name, number)
        super()._embed(number, prompt, message)

    def _turn(self) -> list[Generation]:
        self._expert_of = names = {number: self._expert_of[number] for number in self._made}
        chosen = choose_turn(list(names.values()), self._current, self._runs)
        texts = [text for number, text in self._made.items() if names[number] == chosen]
        self._use(chosen, texts[0].number)
        self._runs += 1
        return texts

    def _use(self, name: str, number: int) -> None:
        """Use the parameters of an expert for a text."""
        if name == self._current:
            return
        expert = self._experts[name]
        self._program.use(expert.parameters, expert.known)
        self._current, self._runs = name, 0
        self._tell(number, kind="switched")


def _adapters_of(message: Mapping[str, Any]) -> Mapping[str, Path]:
    return {name: Path(path) for name, path in message["adapters"].items()}
