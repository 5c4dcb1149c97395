"""Texts of one model version, one after another: the PEF's caches hold one. Belongs to one event loop."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from rdukit.errors import Overloaded, RdukitError, RuntimeFault, Unavailable, error_from_body
from rdukit_serving.device.client import DeviceClient
from rdukit_serving.device.messages import PART, cut
from rdukit_serving.models.statistics import ModelStatistics
from rdukit_serving.text.constraints import TextForm

#: Messages that others follow.
_PARTS: Final = frozenset({"piece", "values"})
#: Seconds that a step may take to end when its text is no longer wanted.
_STOP_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Prompt (text or tokens) and how to continue it; ``max_tokens`` None fills the context.

    ``top_logprobs``: how many of the likeliest tokens are told with each; None: no probabilities. ``echo``: the prompt
    comes first, as if it had been made. ``is_rendered``: the prompt has its special tokens already.
    ``form``: what the text must be; None: any. ``keeps_special``: special tokens stay in the text.
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

    def message(self) -> dict[str, Any]:
        """Encode for the device process; the prompt comes separately."""
        return {
            "kind": "generate", "max_tokens": self.max_tokens, "sampling": dict(self.sampling),
            "stop": list(self.stop), "top_logprobs": self.top_logprobs, "echo": self.echo,
            "is_rendered": self.is_rendered, "form": None if self.form is None else self.form.message(),
            "keeps_special": self.keeps_special,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that may be shown now; with the token's bytes and its probability when they were asked for."""

    text: str
    token: bytes | None = None
    logprob: float | None = None
    top: Sequence[tuple[bytes, float]] = ()


@dataclass(frozen=True, slots=True)
class Done:
    """End of a text: ``stop``, ``length`` or ``cancelled``, counts of tokens, microseconds of waiting and work.

    ``stop_sequence``: the text that ended it, where one of ``stop`` did.
    """

    text: str
    reason: str
    prompt_tokens: int
    completion_tokens: int
    queue_us: int = 0
    compute_us: int = 0
    stop_sequence: str | None = None


@dataclass(frozen=True, slots=True)
class Embedding:
    """Vector of a text, how many tokens it had, and microseconds of waiting and of work."""

    values: Sequence[float]
    tokens: int
    queue_us: int = 0
    compute_us: int = 0


@dataclass(slots=True)
class _Clock:
    """Times at which a text came and its turn did, in nanoseconds."""

    came: int = field(default_factory=time.perf_counter_ns)
    began: int = 0

    def microseconds(self) -> tuple[int, int]:
        """Return microseconds waited, and worked until now."""
        return (self.began - self.came) // 1000, (time.perf_counter_ns() - self.began) // 1000


@dataclass(slots=True)
class TextQueue:
    """Queue of generations, which run one at a time."""

    max_queue: int
    statistics: ModelStatistics = field(default_factory=ModelStatistics)
    #: Tokens of all texts so far: read, and made.
    prompt_tokens: int = 0
    completion_tokens: int = 0
    _client: DeviceClient | None = None
    _waiting: int = 0
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _ready: asyncio.Event = field(default_factory=asyncio.Event)
    _messages: "asyncio.Queue[dict[str, Any]]" = field(default_factory=asyncio.Queue)
    _refusal: RdukitError | None = None
    #: Parts of prompts that were sent.
    _sent: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.idle.set()

    @property
    def pending(self) -> int:
        """Return how many texts wait or are made."""
        return self._waiting

    def attach(self, client: DeviceClient) -> None:
        """Send texts to this process from now on."""
        self._client, self._refusal = client, None
        client.on_message = self._messages.put_nowait
        self._ready.set()

    def detach(self, ending: str) -> None:
        """Fail the text that was being made; the others wait. Call when the process is gone."""
        self._client = None
        self._ready.clear()
        self._messages.put_nowait({"kind": "died", "ending": ending})

    def refuse(self, error: RdukitError) -> None:
        """Fail everything that waits, as no process will come."""
        self._refusal = error
        self._ready.set()

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Piece | Done]:
        """Yield pieces as they are made, then ``Done``. Close the iterator to stop early.

        Raises:
            InvalidArgument: the prompt is empty or too long. Overloaded: too many wait.
            Unavailable: the process died, or is not there.
        """
        with self._counted() as clock:
            async with self._turn:
                client = await self._find_client()
                clock.began = time.perf_counter_ns()
                asked = self._messages_of(client, request.prompt, **request.message())
                async with contextlib.aclosing(asked) as messages:
                    async for message in messages:
                        event = _event(message)
                        if isinstance(event, Done):
                            waited, worked = self._count(clock, event.prompt_tokens, event.completion_tokens)
                            event = replace(event, queue_us=waited, compute_us=worked)
                        yield event

    async def embed(self, text: str | Sequence[int]) -> Embedding:
        """Embed a text as a vector.

        Raises:
            InvalidArgument: the model gives none, or the text is empty or too long. Overloaded, Unavailable: as
                ``generate``.
        """
        with self._counted() as clock:
            async with self._turn:
                client = await self._find_client()
                clock.began = time.perf_counter_ns()
                values: list[float] = []
                async with contextlib.aclosing(self._messages_of(client, text, kind="embed")) as messages:
                    async for message in messages:
                        if message["kind"] == "values":
                            values += message["values"]
                        elif message["kind"] == "embedded":
                            return Embedding(values, message["tokens"], *self._count(clock, message["tokens"], 0))
                        else:
                            _event(message)
                raise RuntimeFault("the inference process gave no vector")

    @contextlib.contextmanager
    def _counted(self) -> Iterator[_Clock]:
        """Count a text from its arrival to its end, as failed if it was refused or broke."""
        if self._waiting > self.max_queue:
            self.statistics.count_failed(1)
            raise Overloaded(f"{self._waiting} texts wait; legal: {self.max_queue} (serving.max_queue); try later")
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

    def _count(self, clock: _Clock, prompt_tokens: int, completion_tokens: int) -> tuple[int, int]:
        """Count a text that ended well, with microseconds that it waited and took."""
        queue_us, compute_us = clock.microseconds()
        self.statistics.count_batch(1, 1, queue_us, 0, compute_us, 0)
        self.prompt_tokens += prompt_tokens
        self.completion_tokens += completion_tokens
        return queue_us, compute_us

    async def _find_client(self) -> DeviceClient:
        await self._ready.wait()
        if self._client is None:
            raise self._refusal or Unavailable("the model was unloaded")
        return self._client

    async def _messages_of(
        self, client: DeviceClient, prompt: str | Sequence[int], **request: object
    ) -> AsyncGenerator[dict[str, Any]]:  # fmt: skip
        """Yield the process's answers to the last. Closing early stops the work and waits for its end."""
        while not self._messages.empty():
            self._messages.get_nowait()
        if len(prompt) > PART:
            await self._send_prompt(client, prompt)
            prompt = ""
        client.send(prompt=prompt if isinstance(prompt, str) else list(prompt), **request)
        is_over = False
        try:
            while not is_over:
                message = await self._messages.get()
                is_over = message["kind"] not in _PARTS
                yield message
        finally:
            client.busy_since = None
            if not is_over:
                client.send(kind="cancel")
                with contextlib.suppress(asyncio.TimeoutError):
                    async with asyncio.timeout(_STOP_S):
                        while (await self._messages.get())["kind"] in _PARTS:
                            pass

    async def _send_prompt(self, client: DeviceClient, prompt: str | Sequence[int]) -> None:
        """Send a prompt in parts, each after the process took the one before: the socket holds only some packets."""
        for at, part in cut(prompt):
            self._sent += 1
            client.send(kind="prompt", at=at, number=self._sent, part=part)
            while (message := await self._messages.get())["kind"] != "taken" or message["number"] != self._sent:
                # Those of a caller that went away may still come.
                if message["kind"] != "taken":
                    _event(message)


def _event(message: Mapping[str, Any]) -> Piece | Done:
    match message["kind"]:
        case "piece":
            top = [(bytes.fromhex(token), logprob) for token, logprob in message.get("top", ())]
            token = bytes.fromhex(message["token"]) if "token" in message else None
            return Piece(message["text"], token, message.get("logprob"), top)
        case "done":
            return Done(
                message["text"], message["reason"], message["prompt_tokens"], message["completion_tokens"],
                stop_sequence=message["stop_sequence"],
            )  # fmt: skip
        case "died":
            raise Unavailable(f"the inference process {message['ending']}")
        case "refused":
            raise error_from_body(message, RuntimeFault)
    raise RuntimeFault(f"the inference process said {message['kind']!r}")
