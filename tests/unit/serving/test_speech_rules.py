"""Rules of timestamps and suppressed tokens, segments of a window, and subtitles."""

from typing import Any

import numpy as np
import pytest

from rdukit_serving.speech.description import SpeechTokens
from rdukit_serving.speech.rules import SpeechRules, SpeechSampler
from rdukit_serving.speech.segments import as_srt, as_vtt, compression_ratio, cut_segments
from rdukit_serving.text.sampling import SamplingOptions
from support import shows

pytestmark = shows("speech")

#: Words 0 to 9, the end 10, the start 11, no timestamps 12, and timestamps 13 to 33.
KNOWN = SpeechTokens(start=11, end=10, no_timestamps=12, suppressed=(3, 11), suppressed_first=(4, 10), last_beginning=5)
TEXTS = ((), (13,), (13, 1), (14, 1, 15), (14, 1, 15, 15), (14, 1, 15, 15, 2), (14, 1, 2, 16, 18), (14, 1, 15, 10))


@pytest.mark.parametrize("made", TEXTS)
@pytest.mark.parametrize("has_times", [True, False])
def test_tokens_that_may_follow_are_those_of_transformers(made: tuple[int, ...], has_times: bool) -> None:
    process = pytest.importorskip("transformers.generation.logits_process", reason="the extra `models` is missing")
    torch = pytest.importorskip("torch")

    class Configuration:
        no_timestamps_token_id, eos_token_id, bos_token_id, max_initial_timestamp_index = 12, 10, 10, 5

    steps: list[Any] = [
        process.SuppressTokensAtBeginLogitsProcessor([4, 10], 1), process.SuppressTokensLogitsProcessor([3, 11])
    ]  # fmt: skip
    if has_times:
        steps.append(process.WhisperTimeStampLogitsProcessor(Configuration(), begin_index=1))
    for seed in range(8):
        logits = np.random.default_rng(seed).normal(0, 2, 34).astype(np.float32)
        wanted = torch.from_numpy(logits.copy())[None]
        for step in steps:
            wanted = step(torch.tensor([[11, *made]]), wanted)
        found = SpeechRules(KNOWN, has_times).adjusted(logits, made)
        np.testing.assert_array_equal(found, wanted[0].numpy())


def test_a_sampler_records_tokens_and_probabilities() -> None:
    sampler = SpeechSampler(SamplingOptions(temperature=0.0), SpeechRules(KNOWN, False), [11], [10])
    logits = np.zeros(34, np.float32)
    logits[[4, 5]] = 9, 8
    assert [sampler.choose(logits) for _ in range(2)] == [5, 4]
    assert sampler.record.tokens == [5, 4]
    first, both = np.exp(8) + 29, np.exp(9) + np.exp(8) + 30  # suppressed tokens have no share
    shares = [np.exp(8) / first, np.exp(9) / both]
    np.testing.assert_allclose(sampler.record.logprobs, np.log(shares), atol=1e-6)


@pytest.mark.parametrize(
    ("tokens", "spans", "further"),
    [
        # Two segments, and what follows them is heard again from 0.08 s on.
        ([13, 1, 15, 15, 2, 17, 17, 5], [(0.0, 0.04, [13, 1, 15]), (0.04, 0.08, [15, 2, 17, 17])], 8),
        # One timestamp ends it: silence follows.
        ([13, 1, 15, 15, 2, 17], [(0.0, 0.04, [13, 1, 15]), (0.04, 0.08, [15, 2, 17])], 100),
        ([13, 1, 2, 18], [(0.0, 0.1, [13, 1, 2, 18])], 100),
        ([1, 2], [(0.0, 1.0, [1, 2])], 100),
        ([], [(0.0, 1.0, [])], 100),
    ],
)
def test_a_window_is_cut_at_its_timestamps(tokens: list[int], spans: list[Any], further: int) -> None:
    found, moved = cut_segments(tokens, KNOWN, 0, 100, 0.01)
    assert moved == further
    assert [list(each.tokens) for each in found] == [span[2] for span in spans]
    for each, (start, end, _) in zip(found, spans, strict=True):
        assert (round(each.start_s, 6), round(each.end_s, 6)) == (start, end)
    later, _ = cut_segments(tokens, KNOWN, 250, 100, 0.01)
    assert later[0].start_s == pytest.approx(found[0].start_s + 2.5)


def test_subtitles_number_and_time_their_cues() -> None:
    cues = [(0.0, 1.5, " One\n\nline --> here"), (3661.25, 3662.0, "Two")]
    assert as_srt(cues) == (
        "1\n00:00:00,000 --> 00:00:01,500\nOne line -> here\n\n2\n01:01:01,250 --> 01:01:02,000\nTwo\n\n"
    )
    assert as_vtt(cues[1:]) == "WEBVTT\n\n01:01:01.250 --> 01:01:02.000\nTwo\n\n"
    assert compression_ratio("") == 0 and compression_ratio("la " * 99) > 10
