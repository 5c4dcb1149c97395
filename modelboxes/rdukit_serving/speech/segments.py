"""Segments of a transcript: cut out of a window's tokens at the timestamps, and written as subtitles. Pure.

Source: transformers' generation of long audio with Whisper; SubRip; W3C, WebVTT.
"""

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rdukit_serving.speech.description import SpeechTokens


@dataclass(frozen=True, slots=True)
class Segment:
    """Segment of a transcript: tokens, timestamps included, and seconds from the beginning of the audio."""

    start_s: float
    end_s: float
    tokens: Sequence[int]


def cut_segments(
    tokens: Sequence[int], known: SpeechTokens, seek: int, frames: int, frame_s: float
) -> tuple[list[Segment], int]:
    """Cut a window's tokens into segments, and return them with how many frames later the next window begins.

    Args:
        tokens: without the one that ends them. seek: first frame of the window. frames: of the audio in it.
        frame_s: seconds of a frame; a timestamp counts states, which are two frames each.
    """
    first, state_s, begin_s = known.first_time, 2 * frame_s, seek * frame_s
    if first is None:
        return [Segment(begin_s, begin_s + frames * frame_s, tuple(tokens))], frames
    are_times = [token >= first for token in tokens]
    ends = [at + 1 for at, pair in enumerate(pairwise(are_times)) if all(pair)]
    if not ends:
        times = [token - first for token, is_time in zip(tokens, are_times, strict=True) if is_time]
        # As in transformers: the seconds of a frame over those of a state are 0.5.
        length = times[-1] if times and times[-1] else int(frames * frame_s / state_s)
        return [Segment(begin_s, begin_s + length * state_s, tuple(tokens))], frames
    is_ended = are_times[-2:] == [False, True]
    if is_ended:
        ends.append(len(tokens))
    else:
        ends[-1] += 1
    found = []
    for start, end in pairwise([0, *ends]):
        part = tokens[start:end]
        last = part[-1] if end != ends[-1] or is_ended else part[-2]
        found.append(Segment(begin_s + (part[0] - first) * state_s, begin_s + (last - first) * state_s, tuple(part)))
    # Tokens behind the last pair of timestamps are dropped: the next window begins there.
    return found, frames if is_ended else 2 * (tokens[ends[-1] - 2] - first)


def compression_ratio(text: str) -> float:
    """Return how many times shorter a text becomes when it is compressed: much, if it repeats itself."""
    content = text.encode()
    return len(content) / len(zlib.compress(content)) if content else 0.0


def compression_of_tokens(tokens: Sequence[int], vocabulary: int) -> float:
    """Return the same of the numbers of tokens, each of as many bytes as the vocabulary needs.

    Source: transformers, for ``compression_ratio_threshold``.
    """
    size = int(math.log2(vocabulary) / 8) + 1
    content = b"".join(token.to_bytes(size, "little") for token in tokens)
    return len(content) / len(zlib.compress(content)) if content else 0.0


def as_srt(segments: Sequence[tuple[float, float, str]]) -> str:
    """Write segments (start, end, text) as SubRip subtitles."""
    lines = [
        f"{number}\n{_clock(start, ',')} --> {_clock(end, ',')}\n{_plain(text)}\n"
        for number, (start, end, text) in enumerate(segments, 1)
    ]
    return "\n".join(lines) + "\n"


def as_vtt(segments: Sequence[tuple[float, float, str]]) -> str:
    """Write segments (start, end, text) as WebVTT subtitles."""
    lines = [f"{_clock(start, '.')} --> {_clock(end, '.')}\n{_plain(text)}\n" for start, end, text in segments]
    return "\n".join(["WEBVTT\n", *lines]) + "\n"


def _plain(text: str) -> str:
    """Return a text without an arrow and empty lines, which a cue may not contain."""
    return " ".join(text.replace("-->", "->").split())


def _clock(seconds: float, point: str) -> str:
    milliseconds = round(seconds * 1000)
    minutes, milliseconds = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{milliseconds // 1000:02}{point}{milliseconds % 1000:03}"
