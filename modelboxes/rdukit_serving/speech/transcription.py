"""Transcripts of audio of any length: the model hears one window after another. Each window begins where the last
segment of the previous one ended.

Source: transformers' sequential generation of long audio with Whisper; Radford et al. (2022), section 4.5, for windows
that are made again.
"""

import contextlib
import hashlib
import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from rdukit.errors import InvalidArgument, RuntimeFault
from rdukit_serving.models.version import ModelVersion
from rdukit_serving.speech.audio_reader import HeardAudio
from rdukit_serving.speech.description import SpeechDescription, SpeechTokens
from rdukit_serving.speech.segments import Segment, compression_of_tokens, compression_ratio, cut_segments
from rdukit_serving.speech.words import SpokenWord, words_of
from rdukit_serving.text.prompt_tokens import texts_of
from rdukit_serving.text.queue import Done, GenerationRequest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


#: Temperatures of a request that states none, each after the one before gave a poor transcript.
TEMPERATURES: Final = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


@dataclass(frozen=True, slots=True)
class SpokenSegment:
    """Segment of a transcript with its text; ``about`` are the figures of its window that a verbose answer shows."""

    start_s: float
    end_s: float
    text: str
    tokens: Sequence[int]
    about: dict[str, float]
    words: Sequence[SpokenWord] = ()


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
    #: Whether an answer shows when segments begin and end, and when words do.
    has_times: bool
    has_words: bool = False
    #: Repeats what is drawn by chance; None: each time anew, but for a temperature of 0, which has a seed of its own.
    seed: int | None = None

    def temperatures(self) -> Sequence[float]:
        """Return the temperatures to try: 0 is raised as long as transcripts are poor, others are obeyed."""
        return (self.temperature,) if self.temperature else TEMPERATURES

    def sampling(self, seek: int, temperature: float) -> dict[str, Any]:
        """Return the options of sampling for the window at ``seek``; each try has a seed of its own."""
        seed = self.seed if self.temperature or self.seed is not None else 0
        if seed is None:
            return {"temperature": temperature}
        drawn = hashlib.sha256(f"{seed} {seek} {temperature}".encode()).digest()
        return {"temperature": temperature, "seed": int.from_bytes(drawn[:6])}


def check_wanted(wanted: Wanted, description: SpeechDescription, name: str, heads: int) -> None:
    """Refuse unsupported options before the audio is decoded. ``heads`` counts the attention heads that follow audio.

    Raises:
        InvalidArgument: it lacks the language, timestamps, times of words, a token for prompts, or translations.
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
    if wanted.has_words and not heads:
        raise InvalidArgument(
            f"timestamp_granularities: nothing says which of {name}'s heads follow the audio; expected segment, or "
            "alignment_heads in the folder's generation_config.json, as published folders of its size have them",
            field="timestamp_granularities",
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
            "timed_frames": min(count, heard - seek) if wanted.has_words else None,
        }  # fmt: skip
        request = GenerationRequest(
            [*prompt, known.start], None, {}, audio=_window(audio.features_MN, seek, count, form.frames), speech=asked
        )
        window = await _hear(version, description, request, wanted, transcript, _Place(seek, count, audio.seconds))
        language, prompt = window.language, []
        transcript.language = language_code(known, language)
        transcript.segments += window.segments
        yield window.segments
        seek += window.further or count


def language_code(known: SpeechTokens, language: int | None) -> str:
    """Return the code of a language's token; empty for a model of one language."""
    return next((code for code, token in known.languages.items() if token == language), "")


@dataclass(frozen=True, slots=True)
class _Place:
    """Place of a window: its first frame, its frames, and the seconds of all audio."""

    seek: int
    frames: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Window:
    """Segments of a window, the token of its language, and how many frames later the next window begins."""

    segments: list[SpokenSegment]
    language: int | None
    further: int


async def _hear(
    version: ModelVersion, description: SpeechDescription, request: GenerationRequest, wanted: Wanted,
    transcript: Transcript, place: _Place,
) -> _Window:  # fmt: skip
    """Transcribe a window, again at a higher temperature while its transcript is poor; the last one counts."""
    known, limits = description.tokens, description.limits
    assert version.files.checkpoint is not None and version.text is not None
    for temperature in wanted.temperatures():
        done, said = await _finish(version, replace(request, sampling=wanted.sampling(place.seek, temperature)))
        transcript.queue_us, transcript.compute_us = (
            transcript.queue_us + done.queue_us, transcript.compute_us + done.compute_us,
        )  # fmt: skip
        # The language is heard once.
        request = replace(request, speech={**(request.speech or {}), "language": said["language"]})
        tokens = [token for token in said["tokens"] if token != known.end]
        cut, further = cut_segments(tokens, known, place.seek, place.frames, description.audio.frame_s)
        if limits.is_silent(said["logprob"], said["no_speech"]):
            return _Window([], said["language"], place.frames)
        texts = await texts_of(
            version.files.checkpoint, [[token for token in each.tokens if token < known.end] for each in cut]
        )
        ratio = compression_ratio("".join(texts))
        compared = compression_of_tokens(said["tokens"], version.text["vocabulary"]) if limits.counts_tokens else ratio
        if not limits.is_poor(said["logprob"], compared):
            break
    about = {
        "seek": place.seek, "temperature": temperature, "avg_logprob": said["logprob"],
        "no_speech_prob": said["no_speech"], "compression_ratio": ratio,
    }  # fmt: skip
    code = language_code(known, said["language"])
    words = _words_of(said, cut, known, code, place.seek * description.audio.frame_s, place.seconds)
    segments = [
        SpokenSegment(each.start_s, min(each.end_s, place.seconds), text, each.tokens, about, spoken)
        for each, text, spoken in zip(cut, texts, words, strict=True)
        if text.strip()
    ]
    return _Window(segments, said["language"], further)


def _words_of(
    said: Mapping[str, Any], cut: Sequence[Segment], known: SpeechTokens, code: str, begin_s: float, seconds: float
) -> list[Sequence[SpokenWord]]:  # fmt: skip
    """Return the words of each segment, none unless they are timed.

    A token is spoken from the time of the one before it, or the window's beginning, up to its own time.
    """
    if "times" not in said:
        return [() for _ in cut]
    times = [begin_s, *(min(begin_s + time, seconds) for time in said["times"])]
    found, at = list[Sequence[SpokenWord]](), 0
    for segment in cut:
        places = [place for place, token in enumerate(segment.tokens, at) if token < known.end]
        pieces = [bytes.fromhex(said["pieces"][place]) for place in places]
        found.append(words_of(pieces, [(times[place], times[place + 1]) for place in places], code))
        at += len(segment.tokens)
    return found


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
