"""Texts of one model version: as many run at once as its caches have rows. Belongs to one event loop."""

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from rdukit.errors import Overloaded, RdukitError, RuntimeFault, Unavailable, error_from_body
from rdukit_serving.device.messages import OPTIONS_PART, PART, cut, cut_options
from rdukit_serving.models.statistics import ModelStatistics
from rdukit_serving.text.constraints import TextForm

#: Events of a text that others follow.
PARTS: Final = frozenset({"piece", "values", "reading", "taken"})


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Prompt (text or tokens) and its options; ``max_tokens`` None fills the context.

    ``top_logprobs``: number of likeliest tokens that are reported with each; None: no probabilities. ``echo``: the
    prompt comes first, as if it had been made. ``is_rendered``: the prompt has its special tokens already.
    ``form``: the form of the text; None: any. ``keeps_special``: the text keeps special tokens.
    ``audio``: the spectrogram that a model hears, as bytes of float32; ``speech``: options of a transcription.
    """

    prompt: str | Sequence[int]
    max_tokens: int | None
    sampling: Mapping[str, Any]
    stop: Sequence[str] = ()
    top_logprobs: int | None = None
    echo: bool = False
    is_rendered: bool = False
    form: TextForm | None = None
    keeps_special: bool = False
    audio: bytes = b""
    speech: Mapping[str, Any] | None = None

    def message(self) -> dict[str, Any]:
        """Encode for the device process; the prompt comes separately."""
        return {
            "kind": "generate", "max_tokens": self.max_tokens, "sampling": dict(self.sampling),
            "stop": list(self.stop), "top_logprobs": self.top_logprobs, "echo": self.echo,
            "is_rendered": self.is_rendered, "form": None if self.form is None else self.form.message(),
            "keeps_special": self.keeps_special, **({} if self.speech is None else {"speech": dict(self.speech)}),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that may be shown now, with the token's bytes and its probability if requested."""

    text: str
    token: bytes | None = None
    logprob: float | None = None
    top: Sequence[tuple[bytes, float]] = ()


@dataclass(frozen=True, slots=True)
class Thought:
    """Text of the model's thoughts."""

    text: str


@dataclass(frozen=True, slots=True)
class Done:
    """End of a text: ``stop``, ``length`` or ``cancelled``, counts of tokens, microseconds of waiting and generation.

    ``stop_sequence``: the entry of ``stop`` that ended it. ``cached_tokens``: tokens of the prompt that were
    already in the caches. ``guessed_tokens``: speculative tokens that were tried; ``accepted_tokens``: the right ones.
    ``switch_bytes`` and ``switch_s``: bytes of the expert's weights that the emulated device copied, and the projected
    seconds.
    """

    text: str
    reason: str
    prompt_tokens: int
    completion_tokens: int
    queue_us: int = 0
    compute_us: int = 0
    stop_sequence: str | None = None
    cached_tokens: int = 0
    guessed_tokens: int = 0
    accepted_tokens: int = 0
    switch_bytes: int = 0
    switch_s: float = 0.0
    #: Transcript of a window of audio, from ``SpeechGeneration``.
    speech: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Embedding:
    """Vector of a text, its number of tokens, and microseconds of waiting and work."""

    values: Sequence[float]
    tokens: int
    queue_us: int = 0
    compute_us: int = 0


@dataclass(slots=True)
class _Clock:
    """Times of a text's arrival and of its turn, in nanoseconds."""

    came: int = field(default_factory=time.perf_counter_ns)
    began: int = 0

    def microseconds(self) -> tuple[int, int]:
        """Return microseconds waited, and worked until now."""
        return (self.began - self.came) // 1000, (time.perf_counter_ns() - self.began) // 1000


class TextDevice(Protocol):
    """Device process of a text model, or an expert's part of it."""

    text: Mapping[str, int] | None
    on_message: Callable[[dict[str, Any]], None]
    #: ``time.monotonic()`` of its last message while it works; None: it is idle.
    busy_since: float | None

    def send(self, **message: object) -> None:
        """Send a message."""
        ...


@dataclass(slots=True)
class TextQueue:
    """Queue of texts; those with a row run at once, the others wait in order."""

    max_queue: int
    statistics: ModelStatistics = field(default_factory=ModelStatistics)
    #: Tokens of all texts so far: of prompts, those of them from the caches, and generated ones; tried speculative
    #: tokens, and the right ones.
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    guessed_tokens: int = 0
    accepted_tokens: int = 0
    #: Each text enters it before it waits for a row.
    admit: Callable[[], AbstractAsyncContextManager[None]] = contextlib.nullcontext
    #: As many as the model has rows; None: unknown until the model is loaded.
    turns: asyncio.Semaphore | None = None
    #: For the texts in the process.
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    #: Reads long prompts, away from the device process.
    tokens_of: Callable[..., Awaitable[Sequence[int]]] | None = None
    _client: TextDevice | None = None
    #: Waiting and running texts.
    _waiting: int = 0
    #: Largest number of texts at once; 0: unknown.
    _rows: int = 0
    _ready: asyncio.Event = field(default_factory=asyncio.Event)
    #: Events of the texts in the process, by number.
    _events: "dict[int, asyncio.Queue[dict[str, Any]]]" = field(default_factory=dict)
    #: Texts among them whose callers went away.
    _left: set[int] = field(default_factory=set)
    _refusal: RdukitError | None = None
    #: Memory of audio that the process hears, and the place in it of each text.
    _memory: memoryview | None = None
    _places: dict[int, int] = field(default_factory=dict)
    #: Seconds of a text, the latest counting most.
    _usual_s: float = 1.0
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.idle.set()

    @property
    def pending(self) -> int:
        """Return the number of waiting and running texts."""
        return self._waiting

    def attach(self, client: TextDevice, memory: memoryview | None = None) -> None:
        """Send texts to this process from now on; ``memory`` has a place of audio for each row of its caches."""
        self._client, self._refusal, self._memory = client, None, memory
        client.on_message = self._take
        self._rows = (client.text or {}).get("texts", 1)
        if self.turns is None:
            self.turns = asyncio.Semaphore(self._rows)
        self._ready.set()

    def detach(self, ending: str) -> None:
        """Fail the running texts; the others wait. Call when the process is gone."""
        self._client = None
        self._ready.clear()
        for number in list(self._left):
            self._forget(number)
        for events in self._events.values():
            events.put_nowait({"kind": "died", "ending": ending})

    def refuse(self, error: RdukitError) -> None:
        """Fail all waiting texts, as no process will come."""
        self._refusal = error
        self._ready.set()

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Piece | Done]:
        """Yield pieces as they are generated, then ``Done``. Close the iterator to stop early.

        If the process dies before the first piece, the text is generated once more.

        Raises:
            InvalidArgument: the prompt is empty or too long. Overloaded: too many wait.
            Unavailable: the process died, or is not there.
        """
        async with self._admitted() as clock:
            prompt = await self._short(request.prompt, is_rendered=request.is_rendered)
            is_told = request.echo and prompt is not request.prompt
            if is_told:  # else the process tells it, from tokens
                yield Piece(str(request.prompt))
            for is_again in itertools.count():
                client = await self._take_turn()
                clock.began = time.perf_counter_ns()
                asked = self._events_of(client, prompt, request.audio, **request.message(), is_told=is_told)
                async with contextlib.aclosing(asked) as events:
                    has_begun = False
                    async for message in events:
                        if message["kind"] == "died" and not (has_begun or is_again):
                            break  # nobody has seen anything of it: once more, as a batch is run
                        has_begun = True
                        event = _event(message)
                        if isinstance(event, Done):
                            self.cached_tokens += event.cached_tokens
                            self.guessed_tokens += event.guessed_tokens
                            self.accepted_tokens += event.accepted_tokens
                            waited, worked = self._count(clock, event.prompt_tokens, event.completion_tokens)
                            event = replace(event, queue_us=waited, compute_us=worked)
                        yield event
                    else:
                        return

    async def embed(self, text: str | Sequence[int]) -> Embedding:
        """Embed a text as a vector.

        Raises:
            InvalidArgument: the model does not embed, or the text is empty or too long. Overloaded, Unavailable: as
                ``generate``.
        """
        async with self._admitted() as clock:
            text = await self._short(text, field="input")
            client = await self._take_turn()
            clock.began = time.perf_counter_ns()
            values: list[float] = []
            async with contextlib.aclosing(self._events_of(client, text, kind="embed")) as events:
                async for message in events:
                    if message["kind"] == "values":
                        values += message["values"]
                    elif message["kind"] == "embedded":
                        return Embedding(values, message["tokens"], *self._count(clock, message["tokens"], 0))
                    else:
                        _event(message)
            raise RuntimeFault("the inference process gave no vector")

    async def _short(self, prompt: str | Sequence[int], **how: Any) -> str | Sequence[int]:
        """Return the tokens of a long text, which are fewer than its bytes; otherwise its process would delay all other
        texts.
        """
        if self.tokens_of is None or len(prompt) <= PART:
            return prompt
        return await self.tokens_of(prompt, **how)

    @contextlib.asynccontextmanager
    async def _admitted(self) -> AsyncIterator[_Clock]:
        """Count a text, and wait until a row is free for it."""
        with self._counted() as clock:
            async with self.admit():
                yield clock

    @contextlib.contextmanager
    def _counted(self) -> Iterator[_Clock]:
        """Count a text from its arrival to its end; a refused or broken text counts as failed."""
        waiting = self._waiting - self._rows
        if waiting >= self.max_queue:
            self.statistics.count_failed(1)
            raise Overloaded(
                f"{waiting} texts wait, which is the limit {self.max_queue} (serving.max_queue); try later",
                retry_after_s=self._free_in_s(),
            )
        self._waiting += 1
        self.idle.clear()
        try:
            yield _Clock()
        except RdukitError:
            self.statistics.count_failed(1)
            raise
        finally:
            self._waiting -= 1
            if not self._waiting:
                self.idle.set()

    def _free_in_s(self) -> int:
        """Estimate the seconds until a row is free, from recent durations of texts."""
        return max(1, round(self._usual_s / max(1, self._rows)))

    def _count(self, clock: _Clock, prompt_tokens: int, completion_tokens: int) -> tuple[int, int]:
        """Count a successful text, with its microseconds of waiting and generation."""
        queue_us, compute_us = clock.microseconds()
        self._usual_s += (compute_us / 1e6 - self._usual_s) / 8
        self.statistics.count_batch(1, 1, queue_us, 0, compute_us, 0)
        self.prompt_tokens += prompt_tokens
        self.completion_tokens += completion_tokens
        return queue_us, compute_us

    async def _take_turn(self) -> TextDevice:
        """Wait for the process and for a row of its caches; ``_events_of`` gives it back."""
        while True:
            await self._ready.wait()
            if self.turns is None:
                raise self._refusal or Unavailable("the model was unloaded")
            await self.turns.acquire()
            if self._ready.is_set() and self._client is not None:
                return self._client
            # A text with a row never waits for the process: an expert may return only after texts of others have ended.
            self.turns.release()
            if self._ready.is_set():
                raise self._refusal or Unavailable("the model was unloaded")

    def _take(self, message: Mapping[str, Any]) -> None:
        """Hand each event of a packet to its text; texts without a caller only need their end."""
        for event in message["events"]:
            number = event["number"]
            if number in self._left:
                if event["kind"] not in PARTS:
                    self._forget(number)
            elif number in self._events:
                self._events[number].put_nowait(event)

    def _forget(self, number: int) -> None:
        """Free the row of a text that the process no longer has."""
        del self._events[number]
        self._left.discard(number)
        self._places.pop(number, None)
        if self.turns is not None:
            self.turns.release()
        if not self._events and self._client is not None:
            self._client.busy_since = None

    def _place(self, number: int, audio: bytes) -> int:
        """Write audio into the memory of the process, and return its place; each text with a row has one."""
        assert self._memory is not None and len(audio) * self._rows == len(self._memory), "audio of another model"
        place = next(place for place in range(self._rows) if place not in self._places.values())
        self._places[number] = place
        self._memory[place * len(audio) : (place + 1) * len(audio)] = audio
        return place

    async def _events_of(
        self, client: TextDevice, prompt: str | Sequence[int], audio: bytes = b"", **request: object
    ) -> AsyncGenerator[dict[str, Any]]:  # fmt: skip
        """Yield the process's answers up to the last. Closing early stops the work, whose row is free at its end."""
        number = next(self.numbers)
        events = self._events[number] = asyncio.Queue()
        is_over = False
        try:
            if audio:
                request["place"] = self._place(number, audio)
            # Each part follows when the process took the previous one: the socket holds only some packets.
            options = json.dumps(request)
            parts = [("prompt", *part) for part in cut(prompt)] if len(prompt) > PART else []
            if len(options) > OPTIONS_PART:
                parts += [("options", *part) for part in cut_options(options)]
                request = {"kind": request["kind"], "has_more_options": True}
            for kind, at, part in parts:
                client.send(kind=kind, number=number, at=at, part=part)
                if (message := await events.get())["kind"] != "taken":
                    is_over = True
                    yield message
                    return
            prompt = "" if len(prompt) > PART else prompt
            client.send(number=number, prompt=prompt if isinstance(prompt, str) else list(prompt), **request)
            while not is_over:
                message = await events.get()
                is_over = message["kind"] not in PARTS
                if message["kind"] != "reading":
                    yield message
        finally:
            # This code awaits nothing: a caller may be cancelled again at each await.
            if is_over or self._client is not client:
                self._forget(number)
            else:
                self._left.add(number)
                client.send(kind="cancel", number=number)


def _event(message: Mapping[str, Any]) -> Piece | Done:
    match message["kind"]:
        case "piece":
            top = [(bytes.fromhex(token), logprob) for token, logprob in message.get("top", ())]
            token = bytes.fromhex(message["token"]) if "token" in message else None
            return Piece(message["text"], token, message.get("logprob"), top)
        case "done":
            return Done(
                message["text"], message["reason"], message["prompt_tokens"], message["completion_tokens"],
                stop_sequence=message.get("stop_sequence"), cached_tokens=message.get("cached_tokens", 0),
                guessed_tokens=message.get("guessed_tokens", 0), accepted_tokens=message.get("accepted_tokens", 0),
                switch_bytes=message.get("switch_bytes", 0), switch_s=message.get("switch_s", 0.0),
                speech=message.get("speech"),
            )  # fmt: skip
        case "died":
            raise Unavailable(f"the inference process {message['ending']}")
        case "refused":
            raise error_from_body(message, RuntimeFault)
    raise RuntimeFault(f"the inference process said {message['kind']!r}")
