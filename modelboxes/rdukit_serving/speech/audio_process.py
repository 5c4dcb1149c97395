"""A process that decodes one audio file of a stranger: a line of JSON and the file in, a line and a spectrogram out.

``{"form", "seconds", "memory"}`` and a file → ``{"frames", "seconds"}`` and its spectrogram, or ``{"refused"}``. It has
limits that it cannot lift, and its parent kills it if the answer is late.
"""

import io
import json
import resource
import signal
import sys
from typing import Any, Final

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from rdukit.system.limits import limit_this_process
from rdukit_serving.speech.description import AudioForm
from rdukit_serving.speech.features import log_mel

#: How files of a format begin → the names that the library has for it.
_FORMATS: Final = (
    (b"RIFF", {"WAV", "WAVEX"}), (b"fLaC", {"FLAC"}), (b"OggS", {"OGG"}), (b"ID3", {"MP3"}), (b"\xff", {"MP3"}),
)  # fmt: skip
LEGAL: Final = "WAV, FLAC, MP3 or Ogg"
#: Signatures of common but unsupported formats: the file's start, or its bytes after the first four.
_OTHERS: Final = ((b"ftyp", 4, "MP4 or M4A"), (b"\x1aE\xdf\xa3", 0, "WebM"), (b"FORM", 0, "AIFF"))
MAX_CHANNELS: Final = 8
RATES: Final = (4_000, 384_000)
#: Samples of each channel that are decoded at once.
_BLOCK: Final = 1 << 16
_CPU_S: Final = 30


class BadAudio(ValueError):
    """A file that cannot be used as audio, and what is expected."""


def main() -> None:
    """Answer once."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server
    asked = json.loads(sys.stdin.buffer.readline())
    form, most_s = AudioForm(**asked["form"]), float(asked["seconds"])
    log_mel(np.zeros(form.transform, np.float32), AudioForm(form.rate, form.transform, form.hop, form.mels, 4))
    limit_this_process(int(asked["memory"]))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S + int(most_s),) * 2)
    try:
        samples_L = read_samples(sys.stdin.buffer.read(), form.rate, most_s)
        features_MN = log_mel(samples_L, form)
        answer: dict[str, Any] = {"frames": features_MN.shape[1], "seconds": len(samples_L) / form.rate}
    except MemoryError:
        answer = {"refused": "it needs too much memory to be decoded; expected a shorter file"}
    except BadAudio as error:
        answer = {"refused": str(error)}
    except Exception as error:  # noqa: BLE001 the border of what a stranger sent
        answer = {"refused": f"it cannot be decoded ({type(error).__name__}); expected {LEGAL}"}
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
    if "refused" not in answer:
        sys.stdout.buffer.write(features_MN.tobytes())
    sys.stdout.buffer.flush()


def read_samples(content: bytes, rate: int, most_s: float) -> NDArray[np.float32]:
    """Return the samples [L] of a file at ``rate`` a second, the mean of its channels.

    Raises:
        BadAudio: its format is not supported, it has a wrong rate or too many channels, or is empty or too long.
    """
    legal = next((names for begin, names in _FORMATS if content.startswith(begin)), None)
    if legal is None:
        other = next((name for mark, at, name in _OTHERS if content[at : at + len(mark)] == mark), "")
        raise BadAudio(f"it is {other or 'no audio that is read'}; expected {LEGAL}")
    try:
        opened = soundfile.SoundFile(io.BytesIO(content))
    except (soundfile.LibsndfileError, RuntimeError) as cause:
        raise BadAudio(f"it is damaged, or no audio; expected {LEGAL}") from cause
    with opened as file:
        if file.format not in legal:
            raise BadAudio(f"it is {file.format}; expected {LEGAL}")
        if not 1 <= file.channels <= MAX_CHANNELS or not RATES[0] <= file.samplerate <= RATES[1]:
            raise BadAudio(
                f"it has {file.channels} channels with {file.samplerate} samples a second; expected 1 to "
                f"{MAX_CHANNELS} "
                f"channels of {RATES[0]} to {RATES[1]}"
            )
        return _decoded(file, rate, most_s)


def _decoded(file: soundfile.SoundFile, rate: int, most_s: float) -> NDArray[np.float32]:
    """Decode a file block by block, so that its header need not be believed."""
    resampler = None
    if file.samplerate != rate:
        resampler = soxr.ResampleStream(file.samplerate, rate, 1, dtype="float32")
    parts: list[NDArray[np.float32]] = []
    count = 0
    while True:
        try:
            block = file.read(_BLOCK, dtype="float32", always_2d=True)
        except soundfile.LibsndfileError as cause:
            raise BadAudio(f"it is damaged after {count / file.samplerate:.1f} s") from cause
        count += len(block)
        if count > most_s * file.samplerate:
            raise BadAudio(f"it is longer than {most_s:g} s (box.max_audio_s); cut it into parts")
        mono_L = block.mean(axis=1, dtype=np.float32)
        if not np.isfinite(mono_L).all():
            raise BadAudio("a sample is not finite; expected finite samples")
        is_last = len(block) < _BLOCK
        parts.append(mono_L if resampler is None else resampler.resample_chunk(mono_L, last=is_last))
        if is_last:
            break
    if not count:
        raise BadAudio("it has no samples; expected some audio")
    return np.concatenate(parts)


if __name__ == "__main__":
    main()
