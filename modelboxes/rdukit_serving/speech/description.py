"""Facts of a speech model next to its checkpoint: audio to spectrograms, and the meaning of tokens. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from rdukit.errors import InvalidArgument, PefMismatch
from rdukit_serving.text.chat_template import companion

SPEECH_FILE: Final = "speech.json"
#: Version of the file's form; others are refused.
VERSION: Final = 2


@dataclass(frozen=True, slots=True)
class AudioForm:
    """Form of a model's spectrograms: samples a second, samples of a Fourier transform and from one frame to the next,
    bands of a frame, and frames of a window, the model's input.
    """

    rate: int = 16_000
    transform: int = 400
    hop: int = 160
    mels: int = 80
    frames: int = 3000

    @property
    def window_samples(self) -> int:
        """Return the samples of a window."""
        return self.frames * self.hop

    @property
    def frame_s(self) -> float:
        """Return the seconds from one frame to the next."""
        return self.hop / self.rate


@dataclass(frozen=True, slots=True)
class SpeechTokens:
    """Numbers of a model's tokens; None: it has none.

    ``start`` begins a transcript, ``end`` ends it, ``previous`` stands before a prompt, ``no_timestamps`` is followed
    by the timestamps, one for each state of the encoder. ``languages`` are by code, such as ``en``; without any the
    model knows one language and no tasks. ``suppressed`` tokens are never written, ``suppressed_first`` are never the
    first.
    """

    start: int
    end: int
    previous: int | None = None
    no_speech: int | None = None
    no_timestamps: int | None = None
    transcribe: int | None = None
    translate: int | None = None
    languages: Mapping[str, int] = field(default_factory=dict)
    suppressed: Sequence[int] = ()
    suppressed_first: Sequence[int] = ()
    #: The last timestamp that a transcript may begin with, by its place; None: any.
    last_beginning: int | None = None

    @property
    def first_time(self) -> int | None:
        """Return the timestamp of 0 seconds."""
        return None if self.no_timestamps is None else self.no_timestamps + 1

    def is_time(self, token: int) -> bool:
        """Return whether a token is a timestamp."""
        return self.no_timestamps is not None and token > self.no_timestamps


@dataclass(frozen=True, slots=True)
class TranscriptLimits:
    """Limits of a window's transcript, beyond which it is made again at a higher temperature, or left out as silence.

    Source: Radford et al. (2022), section 4.5. ``counts_tokens``: the compression is that of the tokens' numbers, as
    transformers compares it with a folder's own ``compression_ratio_threshold``, and not that of the text.
    """

    #: Least mean of the logarithms of the tokens' probabilities.
    logprob: float = -1.0
    #: Highest ratio of a text's length to that of its compressed form.
    compression: float = 2.4
    #: Highest probability that nobody speaks, of a window whose tokens are less likely than ``logprob``.
    no_speech: float = 0.6
    counts_tokens: bool = False

    def is_silent(self, logprob: float, no_speech: float) -> bool:
        """Return whether nobody speaks in a window."""
        return no_speech > self.no_speech and logprob < self.logprob

    def is_poor(self, logprob: float, compression: float) -> bool:
        """Return whether a transcript that is not silent should be made again."""
        return logprob < self.logprob or compression > self.compression


@dataclass(frozen=True, slots=True)
class SpeechDescription:
    """Facts of a speech model. ``median`` is the width of the filter that attention passes before it times tokens."""

    audio: AudioForm
    tokens: SpeechTokens
    limits: TranscriptLimits = TranscriptLimits()
    median: int = 7

    def to_json(self) -> dict[str, Any]:
        """Return the content of the file."""
        return {"version": VERSION, **asdict(self)}

    def check_sizes(self, sizes: Mapping[str, int], where: str) -> None:
        """Compare with a compiled model's sizes, as ``TextSizes.figures`` has them.

        Raises:
            PefMismatch: names what differs.
        """
        for name, has in (("mels", self.audio.mels), ("frames", self.audio.frames)):
            if sizes.get(name) != has:
                raise PefMismatch(f"{where}: {name} is {has}, but the PEF was compiled for {sizes.get(name)}")
        known = [*self.tokens.languages.values(), *self.tokens.suppressed, *self.tokens.suppressed_first]
        known += [token for token in asdict(self.tokens).values() if isinstance(token, int)]
        if max(known) >= sizes["vocabulary"]:
            raise PefMismatch(f"{where}: it has token {max(known)}; expected tokens below {sizes['vocabulary']}")


def read_description(checkpoint: Path) -> SpeechDescription:
    """Read the file next to a checkpoint.

    Raises:
        InvalidArgument: it is missing or damaged, or of another version.
    """
    path = companion(checkpoint, SPEECH_FILE)
    try:
        value = json.loads(path.read_text())
        if value["version"] != VERSION:
            raise InvalidArgument(f"{path} has version {value['version']!r}; expected {VERSION}: prepare it again")
        return SpeechDescription(
            AudioForm(**value["audio"]), SpeechTokens(**value["tokens"]), TranscriptLimits(**value["limits"]),
            int(value["median"]),
        )  # fmt: skip
    except OSError as cause:
        raise InvalidArgument(f"{path} is missing; a speech model needs it next to its parameters") from cause
    except (ValueError, KeyError, TypeError, AttributeError) as cause:
        raise InvalidArgument(f"{path} is damaged: {cause!r}") from cause
