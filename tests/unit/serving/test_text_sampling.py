"""Sampling: what may be chosen, how often, and the same again with the same seed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdukit.errors import InvalidArgument
from rdukit_serving.text.constraints import FormKind, TextForm
from rdukit_serving.text.sampling import Sampler, SamplingOptions, likeliest, log_probabilities, probabilities
from support import shows
from support.formed_texts import END, constraints

pytestmark = shows("inference", "text-models")

LOGITS = np.log(np.array([0.1, 0.4, 0.2, 0.3], np.float32))


def test_probabilities_are_those_of_the_logits_and_sharper_when_it_is_colder() -> None:
    np.testing.assert_allclose(probabilities(LOGITS, 1.0), [0.1, 0.4, 0.2, 0.3], rtol=1e-6)
    squared = np.array([0.01, 0.16, 0.04, 0.09])
    np.testing.assert_allclose(probabilities(LOGITS, 0.5), squared / squared.sum(), rtol=1e-6)
    assert probabilities(LOGITS * 1000, 0.001)[1] == 1.0
    np.testing.assert_allclose(log_probabilities(LOGITS), np.log([0.1, 0.4, 0.2, 0.3]), rtol=1e-6)


def test_top_k_and_top_p_keep_the_likeliest_and_always_one() -> None:
    np.testing.assert_allclose(probabilities(LOGITS, 1.0, top_k=2), [0, 4 / 7, 0, 3 / 7], rtol=1e-6)
    np.testing.assert_allclose(probabilities(LOGITS, 1.0, top_p=0.65), [0, 4 / 7, 0, 3 / 7], rtol=1e-6)
    np.testing.assert_allclose(probabilities(LOGITS, 1.0, top_p=0.75), [0, 4 / 9, 2 / 9, 3 / 9], rtol=1e-6)
    assert probabilities(LOGITS, 1.0, top_p=1e-9).tolist() == [0, 1, 0, 0]
    assert probabilities(LOGITS, 1.0, top_k=99).min() > 0
    assert probabilities(np.zeros(4, np.float32), 1.0, top_k=1).tolist() == [1, 0, 0, 0]


def test_top_p_keeps_as_many_as_reach_it_however_many_those_are() -> None:
    shares_V = probabilities(np.zeros(4096, np.float32), 1.0, top_p=0.5)  # of 2 ** -12 each: sums are exact
    np.testing.assert_allclose(shares_V, [2**-11] * 2048 + [0.0] * 2048, rtol=1e-12)


@given(st.integers(0, 1000), st.sampled_from([1, 5, 600, 2000]), st.sampled_from([0.1, 0.5, 0.9, 0.999, 1.0]))
def test_the_likeliest_of_many_are_those_of_a_sort(seed: int, top_k: int, top_p: float) -> None:
    draw = np.random.default_rng(seed)
    logits = np.float32(draw.choice([0.5, 3.0, 9.0])) * draw.integers(-9, 9, 1500).astype(np.float32)  # many are equal
    order = np.argsort(-logits, kind="stable")
    assert likeliest(logits.astype(np.float64), top_k).tolist() == order[:top_k].tolist()
    shares = np.exp(logits.astype(np.float64) - logits.max())
    shares[order[top_k:]] = 0.0
    shares /= shares.sum()
    before = shares[order].cumsum() - shares[order]
    shares[order[(before >= top_p) & (top_p < 1.0)]] = 0.0
    shares /= shares.sum()
    found = probabilities(logits, 1.0, top_k, top_p)
    assert np.array_equal(found > 0, shares > 0) and np.allclose(found, shares, rtol=1e-12)
    assert likeliest(shares, 0).tolist() == []


def test_choices_come_as_often_as_their_probability_says_and_again_with_the_same_seed() -> None:
    def draw(seed: int | None, **options: float) -> list[int]:
        sampler = Sampler(SamplingOptions(seed=seed, **options))  # type: ignore[arg-type]
        return [sampler.choose(LOGITS) for _ in range(2000)]

    counts = np.bincount(draw(3), minlength=4) / 2000
    np.testing.assert_allclose(counts, [0.1, 0.4, 0.2, 0.3], atol=0.04)
    assert draw(3) == draw(3) != draw(4)
    assert set(draw(None, temperature=0.0)) == {1}
    assert set(draw(5, top_k=2)) == {1, 3}


def test_min_p_and_the_penalty_of_repetition_are_those_of_transformers() -> None:
    import torch
    from transformers import MinPLogitsWarper, RepetitionPenaltyLogitsProcessor, TopKLogitsWarper, TopPLogitsWarper

    scores_V = np.random.default_rng(0).normal(0, 3, 64).astype(np.float32)
    prompt = [3, 9, 9, 60]
    expected_BV = RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor([prompt]), torch.tensor(scores_V[None]))
    greedy = Sampler(SamplingOptions(temperature=0.0, repetition_penalty=1.7), prompt)
    np.testing.assert_allclose(greedy._adjusted(scores_V), expected_BV[0], rtol=1e-6)
    first = greedy.choose(scores_V)
    again_BV = RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor([[*prompt, first]]), torch.tensor(scores_V[None]))
    assert greedy.choose(scores_V) == int(again_BV.argmax())
    for top_k, top_p, min_p in ((0, 1.0, 0.2), (9, 1.0, 0.05), (20, 0.9, 0.02)):
        warped_BV = torch.tensor(scores_V[None]) / 0.8
        for warper in ([TopKLogitsWarper(top_k)] if top_k else []) + ([TopPLogitsWarper(top_p)] if top_p < 1 else []):
            warped_BV = warper(None, warped_BV)
        warped_BV = MinPLogitsWarper(min_p)(None, warped_BV)
        found_V = probabilities(scores_V, 0.8, top_k, top_p, min_p)
        np.testing.assert_allclose(found_V, warped_BV.softmax(-1)[0].numpy(), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": -0.1}, "expected 0 <= x <= 2"),
        ({"temperature": float("nan")}, "expected 0 <= x <= 2"),
        ({"top_p": 0.0}, "expected 0 < x <= 1"),
        ({"top_k": -1}, "expected 0 <= x"),
        ({"seed": -1}, "seed is -1"),
        ({"min_p": 1.1}, "expected 0 <= x <= 1"),
        ({"repetition_penalty": 0.0}, "expected 0 < x <= 10"),
        ({"frequency_penalty": 2.5}, "expected -2 <= x <= 2"),
        ({"presence_penalty": float("nan")}, "expected -2 <= x <= 2"),
    ],
)
def test_values_outside_their_range_are_refused(options: dict[str, float], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        SamplingOptions(**options)  # type: ignore[arg-type]


def test_what_was_chosen_loses_by_its_number_and_by_being_there_and_the_logits_stay_as_they_were() -> None:
    before = LOGITS.copy()
    often = Sampler(SamplingOptions(temperature=0.0, frequency_penalty=0.5))
    # 0.4, 0.3, 0.2 and 0.1: each choice costs the likeliest a factor of exp(-0.5), so that 0.4 leads 0.3 once, ...
    assert [often.choose(LOGITS) for _ in range(5)] == [1, 3, 1, 2, 3]
    once = Sampler(SamplingOptions(temperature=0.0, presence_penalty=2.0))
    # ... and what costs but once lets the likeliest lead again when all were there.
    assert [once.choose(LOGITS) for _ in range(6)] == [1, 3, 2, 0, 1, 1]
    assert (before == LOGITS).all()


def test_a_bias_is_added_to_the_logits() -> None:
    assert Sampler(SamplingOptions(temperature=0.0, bias=[(0, 100.0)])).choose(LOGITS) == 0
    without = Sampler(SamplingOptions(seed=1, bias=[(1, -100.0), (3, -100.0)]))
    assert {without.choose(LOGITS) for _ in range(100)} == {0, 2}
    masked = np.array([0.0, -np.inf], np.float32)
    assert Sampler(SamplingOptions(temperature=0.0, bias=[(1, 100.0)])).choose(masked) == 0


@pytest.mark.parametrize("pattern", [None, "a*"])
def test_no_text_ends_before_its_least_number_of_tokens_with_or_without_a_form(pattern: str | None) -> None:
    forms, tokens = constraints()
    logits_V = np.zeros(len(tokens), np.float32)
    logits_V[[ord("a"), END]] = 1.0, 9.0
    for least in (0, 1, 3):
        form = None if pattern is None else forms.find(TextForm(FormKind.REGEX, pattern))
        sampler = Sampler(SamplingOptions(temperature=0.0, min_tokens=least), constraint=form, ends=[END])
        assert [sampler.choose(logits_V) for _ in range(least + 1)] == [ord("a")] * least + [END]


def test_a_form_that_leaves_nothing_else_ends_a_text_before_its_least_number_of_tokens() -> None:
    forms, tokens = constraints()
    form = forms.find(TextForm(FormKind.REGEX, "ab"))
    sampler = Sampler(SamplingOptions(temperature=0.0, min_tokens=5), constraint=form, ends=[END])
    made = []
    while not sampler.is_over:
        made.append(sampler.choose(np.zeros(len(tokens), np.float32)))
    assert made in ([ord("a"), ord("b")], [ord("a"), ord("b"), END])


def test_tokens_and_sequences_that_are_forbidden_are_not_chosen() -> None:
    options = SamplingOptions(temperature=0.0, bad_words=((1, 3), (2,)), suppressed=(0, 99), suppressed_first=(1,))
    sampler = Sampler(options, [2])
    assert [sampler.choose(LOGITS) for _ in range(3)] == [3, 1, 1]
    # Where all are forbidden, the logits decide.
    everything = Sampler(SamplingOptions(temperature=0.0, suppressed=(0, 1, 2, 3)))
    assert everything.choose(LOGITS) == 1


def test_the_only_word_of_an_end_token_is_no_bad_word() -> None:
    sampler = Sampler(SamplingOptions(temperature=0.0, bad_words=((1,), (3,)), min_length=3), [0], None, [1])
    assert [sampler.choose(LOGITS) for _ in range(3)] == [2, 2, 1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_form_that_allows_only_forbidden_tokens_keeps_its_text(temperature: float) -> None:
    forms, tokens = constraints()
    options = SamplingOptions(temperature=temperature, suppressed=(ord("a"),), seed=1)
    sampler = Sampler(options, (), forms.find(TextForm(FormKind.REGEX, "ab|cb")), [END])
    logits = np.zeros(len(tokens), np.float32)
    assert sampler.choose(logits) == ord("c")
    alone = Sampler(options, (), forms.find(TextForm(FormKind.REGEX, "ab")), [END])
    assert [alone.choose(logits) for _ in range(2)] == [ord("a"), ord("b")]
