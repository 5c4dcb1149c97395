"""Uploaded audio is decoded in a process of its own, whose limits are settings."""

import asyncio
import os
from pathlib import Path

import numpy as np
import pytest

from rdukit.errors import InvalidArgument
from rdukit_serving.speech.audio_reader import AudioReader
from rdukit_serving.speech.description import AudioForm
from rdukit_serving.speech.features import log_mel
from support import shows
from support.speech_folders import file_of, spoken

pytestmark = shows("speech")

FORM = AudioForm(mels=20, frames=100)


def children() -> set[str]:
    """Return the processes that this one has started and that still are."""
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def is_decoder(pid: str) -> bool:
    """Return whether a child has begun its program."""
    return b"audio_process" in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_several_uploads_are_decoded_each_by_its_own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_BOX_MAX_AUDIO_S", "2")
    before = children()

    async def read_all() -> list[object]:
        reader = AudioReader()
        contents = [file_of(spoken(1.5)), file_of(spoken(2.5), form="FLAC"), b"no audio", file_of(spoken(0.5))]
        return await asyncio.gather(*(reader.read(each, FORM) for each in contents), return_exceptions=True)

    long, too_long, wrong, short = asyncio.run(read_all())
    for found, seconds, frames in ((long, 1.5, 150), (short, 0.5, 100)):
        assert not isinstance(found, BaseException)
        assert (found.seconds, found.features_MN.shape) == (seconds, (20, frames))  # type: ignore[attr-defined]
        np.testing.assert_array_equal(found.features_MN, log_mel(spoken(seconds), FORM))  # type: ignore[attr-defined]
    for refused, words in ((too_long, "longer than 2 s (box.max_audio_s)"), (wrong, "expected WAV, FLAC, MP3 or Ogg")):
        assert isinstance(refused, InvalidArgument) and words in refused.message
        assert refused.detail["field"] == "file"
    assert children() == before


def test_the_process_of_a_caller_that_leaves_is_ended_and_had_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDUKIT_BOX_TOKEN", "of the box alone")
    before = children()

    async def leave() -> None:
        reading = asyncio.create_task(AudioReader().read(file_of(spoken(60)), FORM))
        while not (decoder := [pid for pid in children() - before if is_decoder(pid)]):
            await asyncio.sleep(0)
        assert b"of the box alone" not in Path(f"/proc/{decoder[0]}/environ").read_bytes()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    asyncio.run(leave())
    assert children() == before
