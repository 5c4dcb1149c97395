"""``scripts/programs``: how the text that the device generates is compared with the CPU script's."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from support import shows

pytestmark = shows("programs")

SCRIPTS = Path(__file__).parents[2] / "scripts" / "programs"
WORDS = ["a", "b", "c", " ", "the", "\N{REPLACEMENT CHARACTER}"]


@pytest.fixture(autouse=True)
def _with_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))


def decode(tokens: Sequence[int]) -> str:
    return "".join(WORDS[token] for token in tokens)


def model(*steps: dict[str, float], noise: float = 0.02) -> Callable[[Sequence[int]], tuple[list[float], float]]:
    """Logits by word after so many tokens; words that are not named are far off."""

    def find_logits(made: Sequence[int]) -> tuple[list[float], float]:
        return [steps[len(made)].get(word, -9.0 - place) for place, word in enumerate(WORDS)], noise

    return find_logits


STEPS = ({"the": 3.0, "a": 1.0}, {" ": 2.0}, {"a": 1.50, "b": 1.48, "c": 0.5})


def test_a_fork_is_found_where_texts_part_with_the_logits_there() -> None:
    from first_difference import Fork, find_fork

    found = find_fork("the ab", "the bb", model(*STEPS), decode)
    assert found == Fork(2, 1.50, 1.48, 0.02)
    assert found.is_tie


def test_a_token_that_bf16_can_tell_from_the_best_is_no_tie() -> None:
    from first_difference import find_fork

    found = find_fork("the a", "the c", model(*STEPS), decode)
    assert found is not None and not found.is_tie and (found.theirs, found.ours) == (1.5, 0.5)


def test_a_text_that_no_likely_token_continues_has_no_fork() -> None:
    from first_difference import find_fork

    assert find_fork("the a", "the z", model(*STEPS), decode) is None


def completions(*texts: str) -> str:
    return f"Prompts:\n['Once']\nCompletion:\n{list(texts)}\nmore"


def check_of_llama() -> Callable[..., str]:
    from plan import steps

    (step,) = [step for step in steps() if step.name == "rdu_generate_text llama run"]
    return step.check


@pytest.mark.parametrize(
    ("ours", "noise", "said"),
    [
        ("the a", 0.02, "every token equals"),
        (
            "the b",
            0.02,
            "2 tokens equal .* 1.4800 for ours and 1.5000 for its, which bf16 moves by up to 0.0200: a tie",
        ),
        ("the b", 0.001, "2 tokens equal .* bf16 tells them apart"),
        ("the z", 0.02, "by another token than the best"),
    ],
)
def test_the_check_compares_logits_at_the_first_difference_and_says_so(ours: str, noise: float, said: str) -> None:
    from first_difference import find_fork
    from plan import CheckFailed, Context

    def fork_of(folder: Path, prompt: str, theirs: str, ours: str) -> object:
        assert (folder.name, prompt) == ("llama", "Once")
        return find_fork(theirs, ours, model(*STEPS, noise=noise), decode)

    printed = {"cpu_generate_text llama": completions("the a")}
    context = Context(Path(), Path(), Path(), printed, fork_of)  # type: ignore[arg-type]
    try:
        answer = check_of_llama()(context, completions(ours))
        failed = False
    except CheckFailed as failure:
        answer, failed = str(failure), True

    assert re.search(said, answer)
    assert failed is ("apart" in said or "another" in said)


def test_a_program_that_prints_no_completion_fails() -> None:
    from plan import CheckFailed, Context

    context = Context(Path(), Path(), Path(), {"cpu_generate_text llama": completions("the a")})
    with pytest.raises(CheckFailed, match="no list of completion"):
        check_of_llama()(context, "Prompts:\n['Once']\n")


def test_variants_are_drawn_by_a_seed_and_none_overwrites_anothers_files() -> None:
    from plan import steps
    from variants import VARIANTS, sample

    assert [step.name for step in sample(3, 1)] == [step.name for step in sample(3, 1)]
    assert [step.name for step in sample(3, 1)] != [step.name for step in sample(3, 2)]
    everything = sample(len(VARIANTS) + 1, 0)
    names = [step.name for step in (*steps(), *everything)]
    assert len(names) == len(set(names)) and all(step.is_variant for step in everything)
    pefs = [re.findall(r"pef[-_]name[= ](\S+)", step.argv) for step in (*steps(), *everything)]
    made = [name for found in pefs for name in found]
    assert len(made) == len(set(made)) > len(VARIANTS)


def test_the_page_has_a_table_of_variants_and_counts_them_apart() -> None:
    from plan import Step
    from run import Outcome, _page

    plain = Step("lenet run", "tutorials", "lenet", "lenet.py run", lambda context, printed: "")
    outcomes = [Outcome(plain, 0, True, "loss 2 → 1", 1.0), Outcome(replace(plain, is_variant=True), 1, False, "", 1.0)]
    page = _page(outcomes)
    assert "1 of 1 commands did what they should" in page
    assert "Of these, 0 of 1 commands did what they should" in page
    assert "## Variants" not in _page(outcomes[:1])
