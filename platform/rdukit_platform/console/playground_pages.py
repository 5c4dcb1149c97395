"""The console's playground of an endpoint: a chat, or rows in and outputs out.

The form works without JavaScript. With it a chat is streamed into the page, and can be stopped.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Annotated, Final

import httpx
import orjson
from anyio import to_thread
from fastapi import APIRouter, Form, Request
from starlette.responses import Response, StreamingResponse

from rdukit.errors import InvalidArgument, RdukitError, Unavailable
from rdukit.pef.file import Answers
from rdukit_platform.api.dependencies import platform_of
from rdukit_platform.api.endpoint_calls import PassedRequest, calls_of
from rdukit_platform.api.endpoints import show_all, show_one
from rdukit_platform.console.access import Player, Visitor
from rdukit_platform.console.endpoint_pages import find_answers, makes_text
from rdukit_platform.console.page import SECURITY_HEADERS, PageRoute, page
from rdukit_platform.console.playground import (
    MAX_TEXT,
    Answerer,
    ChatOptions,
    ShownAnswer,
    ShownOutput,
    chat_body,
    example_rows,
    infer_body,
    read_answerer,
    read_chat,
    read_history,
    read_outputs,
    rows_body,
)
from rdukit_platform.console.playground_stream import EventReader, show_event
from rdukit_platform.endpoints.schemas import Endpoint
from rdukit_platform.endpoints.service import get_endpoint, list_endpoints
from rdukit_platform.tenants.scopes import ENDPOINTS_CALL, allows
from rdukit_platform.tenants.service import Caller

router = APIRouter(prefix="/console/endpoints", include_in_schema=False, route_class=PageRoute)

#: Bytes of an answer that are read.
MAX_ANSWER: Final = 8 << 20
#: Endpoints that a second one is chosen from.
MAX_BESIDE: Final = 50
CHAT, ROWS = "chat", "rows"
#: Type of a streamed answer: a line of JSON for each event.
LINES: Final = "application/x-ndjson"


@dataclass(frozen=True, slots=True)
class Played:
    """Answer of an endpoint or one of its experts, with its seconds; or the error."""

    place: Answerer
    seconds: float
    answer: ShownAnswer | None = None
    outputs: tuple[ShownOutput, ...] = ()
    error: str = ""

    @property
    def rate(self) -> float | None:
        """Return the tokens of the answer a second, its prompt and its waiting included."""
        return self.answer.completion_tokens / self.seconds if self.answer and self.seconds > 0 else None


@dataclass(frozen=True, slots=True)
class SeenEndpoint:
    """An endpoint in the form of its playground."""

    endpoint: Endpoint
    #: Forms that it answers, the likelier one first.
    kinds: tuple[str, ...]
    #: Endpoints and models to compare with.
    others: list[Answerer]


@router.get("/{name}/playground")
async def playground(request: Request, name: str, caller: Visitor, form: str | None = None) -> Response:
    """Show the form: a chat for a text model, else rows."""
    seen = await to_thread.run_sync(_look, request, caller, name)
    kind = form if form in seen.kinds else seen.kinds[0]
    rows = ""
    # A check does not wake an idle endpoint.
    if kind == ROWS and seen.endpoint.ready and allows(caller.scopes, ENDPOINTS_CALL):
        try:
            rows = example_rows(await _metadata(request, caller, name))
        except RdukitError:
            rows = ""
    return _page(request, caller, seen, kind, {"rows": rows})


@router.post("/{name}/playground")
async def play(
    request: Request,
    name: str,
    caller: Player,
    form: Annotated[str, Form()] = CHAT,
    prompt: Annotated[str, Form(max_length=MAX_TEXT)] = "",
    history: Annotated[str, Form()] = "",
    rows: Annotated[str, Form()] = "",
    model: Annotated[str, Form(max_length=128)] = "",
    beside: Annotated[str, Form(max_length=200)] = "",
    max_tokens: Annotated[int, Form(ge=1, le=4096)] = 64,
    temperature: Annotated[float, Form(ge=0, le=2)] = 0.0,
    top_p: Annotated[float, Form(gt=0, le=1)] = 1.0,
    seed: Annotated[str, Form(max_length=20)] = "",
    system: Annotated[str, Form(max_length=MAX_TEXT)] = "",
    act: Annotated[str, Form()] = "",
) -> Response:
    """Call the endpoint, and on request a second endpoint or expert; show the answers."""
    seen = await to_thread.run_sync(_look, request, caller, name)
    options = ChatOptions(max_tokens, temperature, top_p, seed, system)
    given = {"prompt": prompt, "rows": rows, "model": model, "beside": beside, **asdict(options)}
    place = Answerer(name, model)
    places = [place, *([read_answerer(beside)] if beside and read_answerer(beside) != place else [])]
    if form == ROWS:
        played = await asyncio.gather(*(_infer(request, caller, each, rows) for each in places))
        return _page(request, caller, seen, ROWS, given, played)
    try:
        chat = [] if act == "new" else read_history(history)
    except InvalidArgument as error:
        return _page(request, caller, seen, CHAT, given, [Played(place, 0.0, error=error.message)])
    if not prompt.strip():
        shown = [] if act == "new" else [Played(place, 0.0, error="Write something first.")]
        return _page(request, caller, seen, CHAT, given, shown, chat)
    asked = [*chat, {"role": "user", "content": prompt}]
    played = await asyncio.gather(*(_chat(request, caller, each, asked, options) for each in places))
    if (answer := played[0].answer) is not None:
        chat = [*asked, {"role": "assistant", "content": answer.text[:MAX_TEXT]}]
        given["prompt"] = ""
    return _page(request, caller, seen, CHAT, given, played, chat)


@router.post("/{name}/playground/stream")
async def stream_chat(
    request: Request,
    name: str,
    caller: Player,
    prompt: Annotated[str, Form(max_length=MAX_TEXT)] = "",
    history: Annotated[str, Form()] = "",
    model: Annotated[str, Form(max_length=128)] = "",
    max_tokens: Annotated[int, Form(ge=1, le=4096)] = 64,
    temperature: Annotated[float, Form(ge=0, le=2)] = 0.0,
    top_p: Annotated[float, Form(gt=0, le=1)] = 1.0,
    seed: Annotated[str, Form(max_length=20)] = "",
    system: Annotated[str, Form(max_length=MAX_TEXT)] = "",
) -> Response:
    """Return the answer of a chat as it is generated, a line of JSON for each event; ``show_event`` has their fields.

    A caller who leaves stops the generation. Errors are also lines, except for an unknown endpoint.
    """
    default = await to_thread.run_sync(_model_of, request, caller, name)
    try:
        if not prompt.strip():
            raise InvalidArgument("Write something first.")
        asked = [*read_history(history), {"role": "user", "content": prompt}]
        options = ChatOptions(max_tokens, temperature, top_p, seed, system)
        body = chat_body(model or default, asked, options, logprobs=True, stream=True)
        headers = {"content-type": "application/json", "accept": "text/event-stream"}
        passed = PassedRequest("POST", "v1/chat/completions", body, headers=headers)
        answer = await calls_of(request).call(caller.tenant_id, name, passed)
        if answer.status_code >= 400:
            raise InvalidArgument(_error_words(await _read(answer)) or f"the endpoint answered {answer.status_code}")
    except RdukitError as error:
        return Response(_line({"error": error.message}), media_type=LINES, headers=SECURITY_HEADERS)
    return StreamingResponse(_lines(answer), media_type=LINES, headers=SECURITY_HEADERS)


async def _lines(answer: StreamingResponse) -> AsyncIterator[bytes]:
    """Yield a streamed chat as lines of JSON; closing it ends the call of the replica."""
    reader, shown, total = EventReader(), 0, 0
    try:
        async for block in answer.body_iterator:
            data = block if isinstance(block, bytes) else str(block).encode()
            total += len(data)
            if total > MAX_ANSWER:
                raise ValueError(f"the answer is longer than {MAX_ANSWER} bytes")
            for event in reader.read(data):
                told = show_event(event, shown)
                shown += len(told.get("tokens", ()))
                if told:
                    yield _line(told)
    except (ValueError, RdukitError, httpx.HTTPError) as error:
        yield _line({"error": f"the answer broke off: {error}"})
    finally:
        close = getattr(answer.body_iterator, "aclose", None)
        if close is not None:
            await close()


def _line(value: dict[str, object]) -> bytes:
    return orjson.dumps(value) + b"\n"


async def _chat(
    request: Request, caller: Caller, place: Answerer, messages: list[dict[str, str]], options: ChatOptions
) -> Played:
    began = perf_counter()
    try:
        model = place.model or await to_thread.run_sync(_model_of, request, caller, place.endpoint)
        body = chat_body(model, messages, options, logprobs=True)
        answer = read_chat(await _call(request, caller, place.endpoint, "POST", "v1/chat/completions", body))
    except RdukitError as error:
        return Played(place, perf_counter() - began, error=error.message)
    return Played(place, perf_counter() - began, answer)


async def _infer(request: Request, caller: Caller, place: Answerer, rows: str) -> Played:
    name, began = place.endpoint, perf_counter()
    try:
        metadata = await _metadata(request, caller, name)
        by_name = rows_body(metadata, rows)
        verb, body = ("rows", by_name) if by_name is not None else ("infer", infer_body(metadata, rows))
        began = perf_counter()
        outputs = read_outputs(await _call(request, caller, name, "POST", f"v2/models/{name}/{verb}", body))
    except RdukitError as error:
        return Played(place, perf_counter() - began, error=error.message)
    return Played(place, perf_counter() - began, outputs=tuple(outputs))


async def _metadata(request: Request, caller: Caller, name: str) -> bytes:
    return await _call(request, caller, name, "GET", f"v2/models/{name}")


async def _call(request: Request, caller: Caller, name: str, method: str, path: str, body: bytes = b"") -> bytes:
    headers = {"content-type": "application/json", "accept": "application/json"}
    answer = await calls_of(request).call(caller.tenant_id, name, PassedRequest(method, path, body, headers=headers))
    text = await _read(answer)
    if answer.status_code >= 400:
        raise InvalidArgument(_error_words(text) or f"the endpoint answered {answer.status_code}")
    return text


async def _read(answer: StreamingResponse) -> bytes:
    """Read an answer to its end.

    Raises:
        InvalidArgument: the text is too long. Unavailable: it broke off.
    """
    text = bytearray()
    blocks = answer.body_iterator
    try:
        async for block in blocks:
            text += block if isinstance(block, bytes) else str(block).encode()
            if len(text) > MAX_ANSWER:
                raise InvalidArgument(
                    f"the endpoint's answer is longer than {MAX_ANSWER} bytes; call it from a program"
                )
    except httpx.HTTPError as cause:
        raise Unavailable(f"the endpoint's answer broke off ({cause}); call it again") from cause
    finally:
        close = getattr(blocks, "aclose", None)
        if close is not None:
            await close()
    return bytes(text)


def _error_words(text: bytes) -> str:
    try:
        found = orjson.loads(text)
    except ValueError:
        return ""
    error = found.get("error") if isinstance(found, dict) else None
    words = error.get("message") if isinstance(error, dict) else error
    return str(words)[:500] if words else ""


def _look(request: Request, caller: Caller, name: str) -> SeenEndpoint:
    platform = platform_of(request)
    with platform.database.read() as session:
        found = show_one(session, get_endpoint(session, caller.tenant_id, name), platform.clock.now())
        answers = find_answers(session, platform, caller.tenant_id, found)
        rows = [row for row in list_endpoints(session, caller.tenant_id, MAX_BESIDE)[0] if row.name != name]
        served = show_all(session, rows, platform.clock.now())
        boxes = {found.box, *(one.box for one in served)}
        is_text = {box: makes_text(session, platform.catalog.boxes(), caller.tenant_id, box) for box in boxes}
        chats = bool(is_text[found.box]) if answers is None else answers is Answers.TEXTS
        others = [Answerer(name, model.name) for model in found.models or ()]
        for one in served:
            models = [model.name for model in one.models or ()]
            if chats == (bool(models) or bool(is_text[one.box])):
                others += [Answerer(one.name, model) for model in models or [""]]
        kinds = (CHAT, ROWS) if chats else (ROWS, CHAT)
    return SeenEndpoint(found, kinds if answers is None else kinds[:1], others)


def _model_of(request: Request, caller: Caller, name: str) -> str:
    platform = platform_of(request)
    with platform.database.read() as session:
        return show_one(session, get_endpoint(session, caller.tenant_id, name), platform.clock.now()).model


def _page(
    request: Request, caller: Caller, seen: SeenEndpoint, kind: str, given: dict[str, object],
    played: list[Played] | tuple[Played, ...] = (), chat: list[dict[str, str]] | tuple[()] = (),
) -> Response:  # fmt: skip
    defaults: dict[str, object] = {"prompt": "", "rows": "", "model": "", "beside": "", **asdict(ChatOptions())}
    return page(
        request, "playground.html", section="Endpoints", endpoint=seen.endpoint, others=seen.others, kind=kind,
        kinds=seen.kinds, given={**defaults, **given}, played=list(played),
        chat=list(chat), history=orjson.dumps(list(chat)).decode(), can_call=allows(caller.scopes, ENDPOINTS_CALL),
    )  # fmt: skip
