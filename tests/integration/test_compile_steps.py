"""A box's compile tells its steps in order, with counts of sections and kernels."""

from pathlib import Path

from rdukit_modelbox.verbs.context import Progress
from rdukit_platform.console.views import progress_words
from rdukit_platform.jobs.states import JobState
from support import shows
from support.boxes import run_verb

pytestmark = shows("operations", "logreg", "console")


def test_a_compile_tells_each_step_once_in_order_and_counts_sections(tmp_path: Path) -> None:
    seen: list[Progress] = []
    run_verb("logreg", "compile", tmp_path / "out", look=seen.append, batch_size=32, mode="o0")
    stages = list(dict.fromkeys(each.stage for each in seen))
    numbers = [stage.split()[1] for stage in stages]
    assert numbers == sorted(set(numbers)), stages
    assert stages[0] == "step 1 of 7: building the model"
    assert stages[-1] == "step 7 of 7: writing the PEF"
    sections = [each for each in seen if "step 4 of 7: sections of" in each.stage]
    assert sections[0].step == 0
    assert sections[-1].step == sections[-1].total >= 1
    assert all(each.eta_s is None or each.eta_s >= 0 for each in seen)


def test_the_page_of_a_compile_shows_its_step_its_count_and_the_estimate() -> None:
    told = Progress("step 5 of 7: kernels", 12, 40, eta_s=21.0).to_json()
    assert progress_words(told, JobState.RUNNING) == "step 5 of 7: kernels · 12 of 40 · 21 s to go"
    told = Progress("step 7 of 7: writing the PEF", 0, 0).to_json()
    assert progress_words(told, JobState.RUNNING) == "step 7 of 7: writing the PEF"
