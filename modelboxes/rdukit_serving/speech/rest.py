"""Bodies and answers of OpenAI's routes for audio: transcriptions and translations, plain and streamed.

Source: OpenAI's API reference; what the official client sends.
"""

import json
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal

from fastapi import Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from pydantic import Field, ValidationError, field_validator
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException

from rdukit.errors import InvalidArgument, MalformedRequest, NotFound
from rdukit_serving.models.version import ModelVersion
from rdukit_serving.speech.audio_reader import AudioReader, HeardAudio
from rdukit_serving.speech.description import SpeechDescription, read_description
from rdukit_serving.speech.segments import as_srt, as_vtt
from rdukit_serving.speech.transcription import SpokenSegment, Transcript, Wanted, check_wanted, transcribe
from rdukit_serving.text.answers import server_timing, stream_response, unless_gone
from rdukit_serving.text.openai_answers import error_body
from rdukit_serving.text.openai_values import refused_body
from rdukit_serving.text.request_fields import ServedFields

FORM: Final = "multipart/form-data"
#: Fields of a form at most, and bytes of one that is not a file.
_MAX_FIELDS: Final = 32
_MAX_FIELD_BYTES: Final = 64 << 10
#: Fields whose values are lists; official clients write brackets behind their names.
_LISTS: Final = frozenset({"timestamp_granularities", "include"})

#: Fields of the API that are refused by name.
_NOT_SERVED: Final = (
    "chunking_strategy", "include", "keywords", "languages", "known_speaker_names", "known_speaker_references",
)  # fmt: skip

Form = Literal["json", "text", "srt", "verbose_json", "vtt"]


class TranslationBody(ServedFields):
    """Form of ``/v1/audio/translations``."""

    NOT_USED: ClassVar[Mapping[str, tuple[object, ...]]] = {"language": ("en",)}

    file: Annotated[Any, Field(json_schema_extra={"type": "string", "format": "binary"})]
    model: str
    prompt: str = ""
    response_format: Form = "json"
    temperature: Annotated[float, Field(ge=0, le=1)] = 0.0
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] | None = None

    @field_validator("file")
    @classmethod
    def _is_file(cls, value: object) -> object:
        if not isinstance(value, UploadFile):
            raise ValueError("expected a file with a name, sent as multipart/form-data")  # noqa: TRY004 pydantic's
        return value


class TranscriptionBody(TranslationBody):
    """Form of ``/v1/audio/transcriptions``."""

    NOT_USED: ClassVar[Mapping[str, tuple[object, ...]]] = dict.fromkeys(_NOT_SERVED, ())

    language: str | None = None
    timestamp_granularities: list[Literal["segment", "word"]] = ["segment"]
    stream: bool = False


class SpeechAnswers:
    """Handlers of the routes for audio; ``find`` returns a loaded model by its name."""

    def __init__(self, find: Callable[[str], Awaitable[ModelVersion]]) -> None:
        self._find, self._reader = find, AudioReader()

    async def transcribe(self, request: Request) -> Response:
        """Write what is spoken."""
        body = await read_form(TranscriptionBody, request)
        if body.response_format != "verbose_json" and "timestamp_granularities" in body.model_fields_set:
            raise InvalidArgument(
                "timestamp_granularities: only response_format verbose_json supports it; leave it out",
                field="timestamp_granularities",
            )
        if body.stream and body.response_format not in {"json", "text"}:
            raise InvalidArgument(
                f"stream: {body.response_format} cannot be streamed; expected response_format json or text",
                field="stream",
            )
        language = body.language.strip().lower() or None if body.language else None
        shown = body.timestamp_granularities or ["segment"]
        return await self._answer(request, body, "transcribe", language, is_stream=body.stream, granularities=shown)

    async def translate(self, request: Request) -> Response:
        """Write in English what is spoken."""
        return await self._answer(request, await read_form(TranslationBody, request), "translate", None)

    async def _answer(
        self, request: Request, body: TranslationBody, task: str, language: str | None, *, is_stream: bool = False,
        granularities: Sequence[str] = ("segment",),
    ) -> Response:  # fmt: skip
        version = await self._find(body.model)
        if version.text is None or not version.text.get("frames"):
            raise NotFound(f"model {body.model!r} does not transcribe audio; expected a Whisper folder", field="model")
        assert version.files.checkpoint is not None
        description = read_description(version.files.checkpoint)
        has_times = body.response_format not in {"json", "text"}
        wanted = Wanted(
            task == "translate", language, body.prompt, body.temperature, has_times, "word" in granularities, body.seed
        )
        check_wanted(wanted, description, version.files.name, version.text.get("alignment", 0))
        content = await body.file.read()
        await body.file.close()
        audio = await unless_gone(request, self._reader.read(content, description.audio))
        transcript = Transcript()
        if is_stream:
            events = _stream(version, description, audio, wanted, transcript)
            return await stream_response(request, events, lambda error: _event(error_body(error)))
        await unless_gone(request, _write(version, description, audio, wanted, transcript))
        headers = server_timing(version, transcript.queue_us, transcript.compute_us)
        shown = answer_of(transcript, body.response_format, task, audio.seconds, granularities)
        if isinstance(shown, str):
            return PlainTextResponse(shown, headers=headers)
        return JSONResponse(shown, headers=headers)


async def _write(
    version: ModelVersion, description: SpeechDescription, audio: HeardAudio, wanted: Wanted, transcript: Transcript
) -> None:
    async for _ in transcribe(version, description, audio, wanted, transcript):
        pass


async def _stream(
    version: ModelVersion, description: SpeechDescription, audio: HeardAudio, wanted: Wanted, transcript: Transcript
) -> AsyncGenerator[bytes]:
    """Yield an event for each segment as its window is done, and one at the end."""
    has_begun = False
    async for segments in transcribe(version, description, audio, wanted, transcript):
        for segment in segments:
            delta = segment.text if has_begun else segment.text.lstrip()
            has_begun = True
            yield _event({"type": "transcript.text.delta", "delta": delta})
    yield _event({"type": "transcript.text.done", "text": transcript.text})


def _event(value: Mapping[str, object]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def answer_of(
    transcript: Transcript, form: Form, task: str, seconds: float, granularities: Sequence[str] = ("segment",)
) -> str | dict[str, object]:  # fmt: skip
    """Return a transcript in the form that a request names; ``granularities``: what a verbose one times."""
    if form == "text":
        return transcript.text + "\n"
    usage = {"type": "duration", "seconds": math.ceil(seconds)}
    if form == "json":
        return {"text": transcript.text, "usage": usage}
    if form == "verbose_json":
        answer: dict[str, object] = {
            "task": task, "language": transcript.language or "en", "duration": seconds, "text": transcript.text
        }  # fmt: skip
        if "segment" in granularities:
            answer["segments"] = [_verbose(number, segment) for number, segment in enumerate(transcript.segments)]
        if "word" in granularities:
            words = [word for segment in transcript.segments for word in segment.words]
            answer["words"] = [
                {"word": word.text, "start": round(word.start_s, 2), "end": round(word.end_s, 2)} for word in words
            ]
        return answer | {"usage": usage}
    cues = [(segment.start_s, segment.end_s, segment.text) for segment in transcript.segments]
    return as_srt(cues) if form == "srt" else as_vtt(cues)


def _verbose(number: int, segment: SpokenSegment) -> dict[str, object]:
    return {
        "id": number, "start": round(segment.start_s, 2), "end": round(segment.end_s, 2), "text": segment.text,
        "tokens": list(segment.tokens), **segment.about,
    }  # fmt: skip


async def read_form(kind: type[Any], request: Request) -> Any:
    """Read the form of a request.

    Raises:
        MalformedRequest: it is not a form. InvalidArgument: a field is wrong, unknown or there twice.
    """
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != FORM:
        raise MalformedRequest(f"content-type is {media[:100]!r}; expected {FORM}", field="content-type")
    try:
        form = await request.form(max_files=1, max_fields=_MAX_FIELDS, max_part_size=_MAX_FIELD_BYTES)
    except HTTPException as cause:
        raise MalformedRequest(f"the form cannot be read: {cause.detail}", field="body") from cause
    try:
        return kind.model_validate(_values(form))
    except ValidationError as cause:
        raise refused_body(kind, cause) from cause


def _values(form: FormData) -> dict[str, object]:
    found: dict[str, object] = {}
    for key in form:
        name, values = key.removesuffix("[]"), form.getlist(key)
        if name in _LISTS:
            known = found.setdefault(name, [])
            assert isinstance(known, list)
            known += values
        elif name in found or len(values) > 1 or name != key:
            raise InvalidArgument(f"{key}: expected one value for field {name}", field=name)
        else:
            found[name] = values[0]
    return found
