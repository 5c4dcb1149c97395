"""Texts of one model version, one after another: the PEF's caches hold one. Belongs to one event loop."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rdukit.errors import Overloaded, RdukitError, RuntimeFault, Unavailable, error_from_body
from rdukit_modelbox.serving.device_link import DeviceLink

#: Messages that others follow.
_PARTS: Final = frozenset({"piece", "values"})
#: Seconds that a step may take to end when its text is no longer wanted.
_STOP_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class TextRequest:
    """A prompt (text or tokens) and how to continue it; ``max_tokens`` 0 fills the context.

    ``top_logprobs``: how many of the likeliest tokens are told with each; None: no probabilities.
    """

    prompt: str | Sequence[int]
    max_tokens: int
    sampling: Mapping[str, Any]
    stop: Sequence[str] = ()
    top_logprobs: int | None = None

    def message(self) -> dict[str, Any]:
        """For the device process."""
        prompt = self.prompt if isinstance(self.prompt, str) else list(self.prompt)
        return {
            "kind": "generate", "prompt": prompt, "max_tokens": self.max_tokens, "sampling": dict(self.sampling),
            "stop": list(self.stop), "top_logprobs": self.top_logprobs,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that may be shown now; with probabilities when they were asked for."""

    text: str
    token: str = ""
    logprob: float | None = None
    top: Sequence[tuple[str, float]] = ()


@dataclass(frozen=True, slots=True)
class Done:
    """The end: ``stop``, ``length`` or ``cancelled``, and counts of tokens."""

    text: str
    reason: str
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Embedding:
    """A text as a vector, and how many tokens it had."""

    values: Sequence[float]
    tokens: int


@dataclass(slots=True)
class TextQueue:
    """Generations wait their turn here."""

    max_queue: int
    _link: DeviceLink | None = None
    _waiting: int = 0
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _ready: asyncio.Event = field(default_factory=asyncio.Event)
    _messages: "asyncio.Queue[dict[str, Any]]" = field(default_factory=asyncio.Queue)
    _refusal: RdukitError | None = None
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.idle.set()

    @property
    def pending(self) -> int:
        """Texts that wait or are made."""
        return self._waiting

    def attach(self, link: DeviceLink) -> None:
        """Send texts to this process from now on."""
        self._link, self._refusal = link, None
        link.on_message = self._messages.put_nowait
        self._ready.set()

    def detach(self, ending: str) -> None:
        """The process is gone: the text that it was making fails, the others wait."""
        self._link = None
        self._ready.clear()
        self._messages.put_nowait({"kind": "died", "ending": ending})

    def refuse(self, error: RdukitError) -> None:
        """Fail what waits: no process will come."""
        self._refusal = error
        self._ready.set()

    async def generate(self, request: TextRequest) -> AsyncGenerator[Piece | Done]:
        """Pieces as they are made, then ``Done``. Close the iterator to stop early: the device stops after its step.

        Raises:
            InvalidArgument: the prompt is empty or too long. Overloaded: too many wait.
            Unavailable: the process died, or is not there.
        """
        self._enter()
        try:
            async with self._turn:
                link = await self._find_link()
                async with contextlib.aclosing(self._messages_of(link, **request.message())) as messages:
                    async for message in messages:
                        yield _event(message)
        finally:
            self._leave()

    async def embed(self, text: str | Sequence[int]) -> Embedding:
        """A text as a vector.

        Raises:
            InvalidArgument: the model gives none, or the text is empty or too long. Overloaded, Unavailable: as
                ``generate``.
        """
        self._enter()
        try:
            async with self._turn:
                link = await self._find_link()
                values: list[float] = []
                prompt = text if isinstance(text, str) else list(text)
                async with contextlib.aclosing(self._messages_of(link, kind="embed", prompt=prompt)) as messages:
                    async for message in messages:
                        if message["kind"] == "values":
                            values += message["values"]
                        elif message["kind"] == "embedded":
                            return Embedding(values, message["tokens"])
                        else:
                            _event(message)
                raise RuntimeFault("the inference process gave no vector")
        finally:
            self._leave()

    def _enter(self) -> None:
        if self._waiting > self.max_queue:
            raise Overloaded(f"{self._waiting} texts wait; legal: {self.max_queue} (serving.max_queue); try later")
        self._waiting += 1
        self.idle.clear()

    def _leave(self) -> None:
        self._waiting -= 1
        if not self._waiting:
            self.idle.set()

    async def _find_link(self) -> DeviceLink:
        await self._ready.wait()
        if self._link is None:
            raise self._refusal or Unavailable("the model was unloaded")
        return self._link

    async def _messages_of(self, link: DeviceLink, **request: object) -> AsyncGenerator[dict[str, Any]]:
        """What the process answers, to its last message. Closing it early stops the work and waits for its end."""
        while not self._messages.empty():
            self._messages.get_nowait()
        link.send(**request)
        is_over = False
        try:
            while not is_over:
                message = await self._messages.get()
                is_over = message["kind"] not in _PARTS
                yield message
        finally:
            link.busy_since = None
            if not is_over:
                link.send(kind="cancel")
                with contextlib.suppress(asyncio.TimeoutError):
                    async with asyncio.timeout(_STOP_S):
                        while (await self._messages.get())["kind"] in _PARTS:
                            pass


def _event(message: Mapping[str, Any]) -> Piece | Done:
    match message["kind"]:
        case "piece":
            top = [(text, logprob) for text, logprob in message.get("top", ())]
            return Piece(message["text"], message.get("token", ""), message.get("logprob"), top)
        case "done":
            return Done(message["text"], message["reason"], message["prompt_tokens"], message["completion_tokens"])
        case "died":
            raise Unavailable(f"the inference process {message['ending']}")
        case "refused":
            raise error_from_body(message, RuntimeFault)
    raise RuntimeFault(f"the inference process said {message['kind']!r}")
