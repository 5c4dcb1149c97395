"""Audio files of all forms become the spectrograms of transformers, or are refused with what is expected."""

import numpy as np
import pytest

from rdukit_serving.speech.audio_process import BadAudio, read_samples
from rdukit_serving.speech.description import AudioForm
from rdukit_serving.speech.features import log_mel, mel_bands
from support import shows
from support.speech_folders import RATE, file_of, spoken

pytestmark = shows("speech")


@pytest.mark.parametrize("mels", [80, 128])
@pytest.mark.parametrize("seconds", [0.01, 3.3])
def test_spectrograms_are_those_of_transformers(mels: int, seconds: float) -> None:
    transformers = pytest.importorskip("transformers", reason="the extra `models` is not installed")
    extractor = transformers.WhisperFeatureExtractor(feature_size=mels, chunk_length=2)
    samples, form = spoken(seconds), AudioForm(mels=mels, frames=200)
    np.testing.assert_allclose(mel_bands(mels, 400, RATE), extractor.mel_filters, rtol=0, atol=1e-12)
    found = log_mel(samples, form)
    assert found.shape == (mels, max(200, len(samples) // 160))
    padded = np.pad(samples, (0, max(0, form.window_samples - len(samples))))
    # Without torch transformers computes in float64, too; its float32 loses what is faint beside loud bands.
    wanted = extractor._np_extract_fbank_features(padded[None], "cpu")[0]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)
    rounded = extractor(padded, sampling_rate=RATE, return_tensors="np", truncation=False).input_features[0]
    loud = wanted > wanted.max() - 1  # 40 decibels
    np.testing.assert_allclose(found[loud], rounded[loud], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("form", "subtype", "most"),
    [
        ("WAV", "PCM_U8", 1 / 128), ("WAV", "PCM_16", 2**-15), ("WAV", "PCM_24", 1e-6), ("WAV", "PCM_32", 1e-6),
        ("WAV", "FLOAT", 0), ("WAV", "DOUBLE", 0), ("WAVEX", "PCM_16", 2**-15), ("FLAC", "PCM_16", 2**-15),
        ("OGG", "VORBIS", 0.2), ("MP3", None, 0.2),
    ],
)  # fmt: skip
def test_files_are_decoded_to_the_mean_of_their_channels(form: str, subtype: str | None, most: float) -> None:
    samples = spoken(0.5)
    stereo = np.stack([samples, samples / 2], 1)
    found = read_samples(file_of(stereo, form=form, subtype=subtype), RATE, 1.0)
    assert abs(len(found) - len(samples)) <= (0 if most < 0.1 else 2000)
    count = min(len(found), len(samples))
    assert float(np.abs(found[:count] - stereo.mean(1)[:count]).max()) <= most + 1e-6


@pytest.mark.parametrize("rate", [8_000, 44_100, 48_000])
def test_other_rates_are_resampled(rate: int) -> None:
    time_L, wanted_L = np.arange(rate) / rate, np.arange(RATE) / RATE
    found = read_samples(file_of(np.sin(2 * np.pi * 440 * time_L).astype(np.float32) / 2, rate), RATE, 1.0)
    assert len(found) == RATE
    inner = slice(2000, -2000)
    np.testing.assert_allclose(found[inner], np.sin(2 * np.pi * 440 * wanted_L)[inner] / 2, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no audio that is read; expected WAV, FLAC, MP3 or Ogg"),
        (b"\x00\x00\x00\x20ftypM4A " + bytes(50), "it is MP4 or M4A; expected WAV"),
        (b"\x1aE\xdf\xa3" + bytes(50), "it is WebM; expected WAV"),
        (b"RIFF" + bytes(60), "damaged, or no audio"),
        (b"fLaC" + bytes(60), "damaged, or no audio"),
        (b"OggS" + bytes(60), "damaged, or no audio"),
        (file_of(spoken(1.2)), r"longer than 1 s \(box.max_audio_s\)"),
        (file_of(spoken(0)), "no samples"),
        (file_of(np.full(9, np.nan, np.float32), subtype="FLOAT"), "not finite"),
        (file_of(np.zeros((9, 9), np.float32)), "9 channels with 16000 samples a second; expected 1 to 8"),
        (file_of(np.zeros(9, np.float32), 1000), "1 channels with 1000 samples"),
    ],
)
def test_other_files_are_refused_with_what_is_expected(content: bytes, words: str) -> None:
    with pytest.raises(BadAudio, match=words):
        read_samples(content, RATE, 1.0)


def test_a_header_that_promises_more_than_there_is_is_not_believed() -> None:
    whole = bytearray(file_of(spoken(0.5)))
    whole[40:44] = (1 << 31).to_bytes(4, "little")  # bytes of the data chunk
    assert len(read_samples(bytes(whole), RATE, 1.0)) == RATE // 2


def test_a_file_that_is_cut_off_is_refused() -> None:
    content = file_of(spoken(3), form="FLAC")
    with pytest.raises(BadAudio, match="damaged"):
        read_samples(content[: len(content) // 2], RATE, 5.0)
