"""Uploaded audio → a spectrogram, in a process for each file: what breaks a decoder breaks that process only."""

import asyncio
import contextlib
import json
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from rdukit.errors import InvalidArgument, Unavailable
from rdukit.settings import resolve
from rdukit.system.limits import small_environment
from rdukit_serving.settings import MAX_AUDIO_S
from rdukit_serving.speech.description import AudioForm

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Files that are decoded at once; the others wait.
_AT_ONCE: Final = 2
#: Seconds for the start of a process, and seconds of audio for each further second that it may take.
_START_S: Final = 30.0
_SPEED: Final = 5.0
#: Memory of a process beyond the file, samples and spectrograms.
_MEMORY_BYTES: Final = 256 << 20
#: Copies of samples and of spectrograms that it makes.
_COPIES: Final = 4
_MAX_LINE: Final = 1 << 16
_THREADS: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class HeardAudio:
    """Spectrogram [M, N] of an audio file, padded to a window at least, and the seconds of the file."""

    features_MN: "NDArray[np.float32]"
    seconds: float


class AudioReader:
    """Reader of a few concurrent uploads."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(_AT_ONCE)

    async def read(self, content: bytes, form: AudioForm) -> HeardAudio:
        """Return the spectrogram of a file.

        Raises:
            InvalidArgument: its format is not supported, or it is too long. Unavailable: no process can be started.
        """
        most_s = resolve(MAX_AUDIO_S)
        async with self._free:
            try:
                async with asyncio.timeout(_START_S + most_s / _SPEED):
                    answer, found = await _decode(content, form, most_s)
            except TimeoutError as cause:
                raise _refused("it takes too long to be decoded; expected a shorter file") from cause
        if answer is None:
            raise _refused("its decoder ended; the file is damaged, or needs too much memory")
        if "refused" in answer:
            raise _refused(str(answer["refused"]))
        import numpy as np

        features_MN = np.frombuffer(found, np.float32).reshape(form.mels, -1)
        return HeardAudio(features_MN, float(str(answer["seconds"])))


async def _decode(content: bytes, form: AudioForm, most_s: float) -> tuple[dict[str, object] | None, bytes]:
    """Return the answer of a file's process; None if it ended before."""
    sizes = most_s * form.rate * (1 + form.mels / form.hop * 2) * 4
    asked = {
        "form": asdict(form), "seconds": most_s, "memory": _MEMORY_BYTES + 2 * len(content) + int(_COPIES * sizes)
    }  # fmt: skip
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "rdukit_serving.speech.audio_process", stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL, limit=_MAX_LINE, start_new_session=True,
            env=small_environment() | _THREADS,
        )  # fmt: skip
    except OSError as cause:
        raise Unavailable(f"no process could be started to decode the file: {cause}") from cause
    try:
        out, _ = await process.communicate(json.dumps(asked).encode() + b"\n" + content)
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await asyncio.shield(process.wait())
    line, end, rest = out.partition(b"\n")
    if not end or process.returncode != 0:
        return None, b""
    answer: dict[str, object] = json.loads(line)
    if "refused" not in answer and len(rest) != 4 * form.mels * int(str(answer["frames"])):
        return None, b""
    return answer, rest


def _refused(reason: str) -> InvalidArgument:
    return InvalidArgument(f"file: {reason}", field="file")
