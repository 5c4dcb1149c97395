"""Transcripts of audio of any length: the model hears one window after another. Each window begins where the last
segment of the previous one ended.

Source: transformers' sequential generation of long audio with Whisper.
"""

import contextlib
import math
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rdukit.errors import InvalidArgument, RuntimeFault
from rdukit_serving.models.version import ModelVersion
from rdukit_serving.speech.audio_reader import HeardAudio
from rdukit_serving.speech.description import SpeechDescription
from rdukit_serving.speech.segments import compression_ratio, cut_segments
from rdukit_serving.text.prompt_tokens import texts_of
from rdukit_serving.text.queue import Done, GenerationRequest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class SpokenSegment:
    """Segment of a transcript with its text; ``about`` are the figures of its window that a verbose answer shows."""

    start_s: float
    end_s: float
    text: str
    tokens: Sequence[int]
    about: dict[str, float]


@dataclass(slots=True)
class Transcript:
    """Transcript that is being written. ``language`` is its code, empty for a model of one language."""

    language: str = ""
    segments: list[SpokenSegment] = field(default_factory=list)
    queue_us: int = 0
    compute_us: int = 0

    @property
    def text(self) -> str:
        """Return the complete text, without spaces around it."""
        return "".join(segment.text for segment in self.segments).strip()


@dataclass(frozen=True, slots=True)
class Wanted:
    """Parts of a request that the model needs."""

    translates: bool
    language: str | None
    prompt: str
    temperature: float
    #: Whether an answer shows when segments begin and end.
    has_times: bool


def check_wanted(wanted: Wanted, description: SpeechDescription, name: str) -> None:
    """Refuse unsupported options before the audio is decoded.

    Raises:
        InvalidArgument: it lacks the language, timestamps, a token for prompts, or translations.
    """
    known = description.tokens
    if wanted.translates and known.translate is None:
        raise InvalidArgument(f"model: {name} does not translate; expected /v1/audio/transcriptions", field="model")
    if wanted.language is not None and wanted.language not in (known.languages or {"en": 0}):
        raise InvalidArgument(
            f"language: {name} does not support {wanted.language!r}; expected one of "
            f"{', '.join(sorted(known.languages)) or 'en'}, or none to detect it",
            field="language",
        )
    if wanted.prompt.strip() and known.previous is None:
        raise InvalidArgument(f"prompt: {name} has no token that introduces prompts; leave it out", field="prompt")
    if wanted.has_times and known.no_timestamps is None:
        raise InvalidArgument(
            f"response_format: {name} has no timestamps; expected json or text", field="response_format"
        )


async def transcribe(
    version: ModelVersion, description: SpeechDescription, audio: HeardAudio, wanted: Wanted, transcript: Transcript
) -> AsyncGenerator[Sequence[SpokenSegment]]:
    """Write a transcript, and yield the segments of each window.

    Raises:
        InvalidArgument: the prompt has special tokens, or the audio is longer than a window and the model has no
            timestamps. Overloaded, Unavailable: as ``TextQueue.generate``.
    """
    form, known = description.audio, description.tokens
    frames = audio.features_MN.shape[1]
    is_long = frames > form.frames
    if is_long and known.no_timestamps is None:
        most_s = form.frames * form.frame_s
        raise InvalidArgument(f"file: the model has no timestamps; expected audio of up to {most_s:g} s", field="file")
    prompt = await _prompt_tokens(version, description, wanted.prompt)
    # Short audio is followed by silence up to a window: no window begins there.
    heard, seek = min(frames, math.ceil(audio.seconds / form.frame_s)), 0
    language = None if wanted.language is None else known.languages.get(wanted.language)
    while seek < heard:
        count = min(form.frames, frames - seek)
        asked = {
            "language": language, "task": known.translate if wanted.translates else known.transcribe,
            "has_times": wanted.has_times or is_long,
        }  # fmt: skip
        request = GenerationRequest(
            [*prompt, known.start], None, {"temperature": wanted.temperature},
            audio=_window(audio.features_MN, seek, count, form.frames), speech=asked,
        )  # fmt: skip
        done, said = await _finish(version, request)
        transcript.queue_us, transcript.compute_us = (
            transcript.queue_us + done.queue_us, transcript.compute_us + done.compute_us,
        )  # fmt: skip
        language, prompt = said["language"], []
        transcript.language = next((code for code, token in known.languages.items() if token == language), "")
        tokens = [token for token in said["tokens"] if token != known.end]
        cut, further = cut_segments(tokens, known, seek, count, form.frame_s)
        assert version.files.checkpoint is not None
        texts = await texts_of(
            version.files.checkpoint, [[token for token in each.tokens if token < known.end] for each in cut]
        )
        about = {
            "seek": seek, "temperature": wanted.temperature, "avg_logprob": said["logprob"],
            "no_speech_prob": said["no_speech"], "compression_ratio": compression_ratio("".join(texts)),
        }  # fmt: skip
        made = [
            SpokenSegment(each.start_s, min(each.end_s, audio.seconds), text, each.tokens, about)
            for each, text in zip(cut, texts, strict=True)
            if text.strip()
        ]
        transcript.segments += made
        yield made
        seek += further or count


async def _finish(version: ModelVersion, request: GenerationRequest) -> tuple[Done, Any]:
    """Return the end of a window's text, and its consequence for the transcript."""
    async with contextlib.aclosing(version.texts.generate(request)) as events:
        async for event in events:
            if isinstance(event, Done) and event.speech is not None:
                return event, event.speech
    raise RuntimeFault("the inference process gave no transcript")


async def _prompt_tokens(version: ModelVersion, description: SpeechDescription, text: str) -> list[int]:
    """Return the tokens before the first window's transcript: the end of the prompt behind its own token."""
    known = description.tokens
    if not text.strip():
        return []
    assert known.previous is not None and version.text is not None
    found = await version.prompt_tokens(" " + text.strip(), is_rendered=True)
    if any(token >= known.end for token in found):
        raise InvalidArgument("prompt: it has a special token, such as <|en|>; expected plain text", field="prompt")
    return [known.previous, *found[-(version.text["context"] // 2 - 1) :]]


def _window(features_MN: "NDArray[np.float32]", seek: int, count: int, frames: int) -> bytes:
    """Return a window's spectrogram [M, frames], filled up with zeros."""
    import numpy as np

    window_MN = np.zeros((features_MN.shape[0], frames), np.float32)
    window_MN[:, :count] = features_MN[:, seek : seek + count]
    return window_MN.tobytes()
