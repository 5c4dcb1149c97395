"""Times of tokens by dynamic time warping, words of a transcript, and limits of transcripts that are made again."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rdukit.errors import InvalidArgument
from rdukit_serving.speech.alignment import medians, token_times, warp
from rdukit_serving.speech.description import AudioForm, SpeechDescription, SpeechTokens, TranscriptLimits
from rdukit_serving.speech.segments import compression_of_tokens
from rdukit_serving.speech.transcription import TEMPERATURES, Wanted, check_wanted
from rdukit_serving.speech.words import words_of
from support import shows

pytestmark = shows("speech")


def paths_to(token: int, state: int) -> Iterator[list[tuple[int, int]]]:
    """Yield each path from the first pair of a token and a state to this one."""
    if (token, state) == (0, 0):
        yield [(0, 0)]
    for before in ((token - 1, state - 1), (token - 1, state), (token, state - 1)):
        if min(before) >= 0:
            yield from ([*path, (token, state)] for path in paths_to(*before))


@pytest.mark.parametrize(("tokens", "states"), [(1, 1), (1, 6), (6, 1), (3, 6), (5, 3), (4, 5)])
def test_the_cheapest_of_all_paths_times_the_tokens(tokens: int, states: int) -> None:
    cost_TS = np.random.default_rng(tokens * 10 + states).normal(size=(tokens, states))
    best = min(paths_to(tokens - 1, states - 1), key=lambda path: sum(float(cost_TS[pair]) for pair in path))
    assert warp(cost_TS) == [min(state for token, state in best if token == wanted) for wanted in range(tokens)]


@pytest.mark.parametrize(("width", "count"), [(7, 20), (7, 4), (7, 3), (3, 5), (1, 4)])
def test_medians_are_those_of_neighbours_with_mirrored_ends(width: int, count: int) -> None:
    values = np.random.default_rng(width).normal(size=(2, 3, count)).astype(np.float32)
    half = width // 2
    padded = np.pad(values, [(0, 0), (0, 0), (half, half)], mode="reflect") if count > half else values
    wanted = [np.median(padded[..., at : at + width], axis=-1) for at in range(count)] if count > half else None
    np.testing.assert_array_equal(medians(values, width), values if wanted is None else np.stack(wanted, -1))


@pytest.mark.parametrize(("tokens", "states", "heard"), [(5, 40, 40), (12, 50, 31), (1, 20, 20), (9, 6, 4)])
def test_times_are_those_of_transformers(tokens: int, states: int, heard: int) -> None:
    theirs = pytest.importorskip("transformers.models.whisper.generation_whisper", reason="`models` is missing")
    torch = pytest.importorskip("torch")
    shares = np.random.default_rng(tokens).dirichlet(np.ones(states), (3, tokens)).astype(np.float32)
    weights = torch.from_numpy(shares)[..., :heard]
    weights = (weights - weights.mean(-2, keepdim=True)) / weights.std(-2, keepdim=True, unbiased=False)
    matrix = theirs._median_filter(weights, 7).mean(0)
    text, time = theirs._dynamic_time_warping(-matrix.double().numpy())
    wanted = time[np.pad(np.diff(text), (1, 0), constant_values=1).astype(bool)] * 0.02
    np.testing.assert_allclose(token_times(shares, heard, 0.02, 7), wanted, atol=1e-9)


def test_no_tokens_have_no_times() -> None:
    assert token_times(np.empty((2, 0, 9), np.float32), 9, 0.02, 7) == []


def spoken(pieces: list[bytes], language: str = "en") -> list[tuple[str, float, float]]:
    spans = [(float(at), float(at + 1)) for at in range(len(pieces))]
    return [(word.text, word.start_s, word.end_s) for word in words_of(pieces, spans, language)]


@pytest.mark.parametrize(
    ("pieces", "language", "words"),
    [
        ([b" Hel", b"lo", b" world", b"."], "en", [("Hello", 0, 2), ("world.", 2, 4)]),
        ([b' "', b"Yes", b'",', b" she"], "en", [('"Yes",', 0, 3), ("she", 3, 4)]),
        ([b" caf", b"\xc3", b"\xa9", b" au"], "fr", [("caf\u00e9", 0, 3), ("au", 3, 4)]),
        ([b"\xe4\xbd", b"\xa0", b"\xe5\xa5\xbd", "\u3002".encode()], "zh", [("\u4f60", 0, 2), ("\u597d\u3002", 2, 4)]),
        ([b" a", b"\xff", b" b\xe4"], "en", [("a\ufffd", 0, 2), ("b\ufffd", 2, 3)]),
        ([b" ", b" x"], "en", [("x", 1, 2)]),
        ([], "en", []),
    ],
)
def test_tokens_become_words_with_their_punctuation(pieces: list[bytes], language: str, words: list[Any]) -> None:
    assert spoken(pieces, language) == words


def test_limits_are_those_of_the_published_algorithm() -> None:
    limits = TranscriptLimits()
    assert not limits.is_poor(-1.0, 2.4) and limits.is_poor(-1.01, 1.0) and limits.is_poor(-0.1, 2.41)
    assert limits.is_silent(-1.01, 0.61) and not limits.is_silent(-0.9, 0.99) and not limits.is_silent(-2.0, 0.6)


def test_compression_of_tokens_is_that_of_transformers() -> None:
    theirs = pytest.importorskip("transformers.models.whisper.generation_whisper", reason="`models` is missing")
    torch = pytest.importorskip("torch")
    for vocabulary, tokens in ((300, [1, 2, 1, 2] * 9), (51865, [50363, 7, 9, 50257]), (256, [3])):
        wanted = theirs.WhisperGenerationMixin._retrieve_compression_ratio(torch.tensor(tokens), vocabulary)
        assert compression_of_tokens(tokens, vocabulary) == pytest.approx(wanted)
    assert compression_of_tokens([], 300) == 0


def test_only_a_temperature_of_0_is_raised_and_each_try_has_a_seed_of_its_own() -> None:
    usual = Wanted(False, None, "", 0.0, True)
    assert usual.temperatures() == TEMPERATURES == (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    seeds = [usual.sampling(seek, each)["seed"] for seek in (0, 3000) for each in TEMPERATURES]
    assert len(set(seeds)) == len(seeds) and seeds[0] == usual.sampling(0, 0.0)["seed"]
    stated = Wanted(False, None, "", 0.7, True)
    assert stated.temperatures() == (0.7,) and stated.sampling(0, 0.7) == {"temperature": 0.7}
    one, other = (Wanted(False, None, "", 0.7, True, seed=seed).sampling(0, 0.7)["seed"] for seed in (1, 2))
    assert one != other and one == Wanted(False, None, "", 0.7, False, seed=1).sampling(0, 0.7)["seed"]


def test_words_are_refused_where_no_heads_follow_the_audio() -> None:
    description = SpeechDescription(AudioForm(), SpeechTokens(start=11, end=10, no_timestamps=12))
    wanted = Wanted(False, None, "", 0.0, True, has_words=True)
    check_wanted(wanted, description, "whisper", 6)
    with pytest.raises(InvalidArgument, match="expected segment, or alignment_heads in the folder's generation_config"):
        check_wanted(wanted, description, "whisper", 0)
