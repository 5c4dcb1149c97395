"""Random modules equal eager torch, or are refused: a seeded part of what ``make fuzz`` does at length."""

import os
from pathlib import Path

import pytest

from fuzzing.generate import generate
from fuzzing.programs import class_text
from fuzzing.trial import Outcome, Way, judge_together
from support import first_short, shows

pytestmark = shows("pytorch", "operators", "o0", "o1", "o3", "portable")

#: Programs of each way, judged one by one or in one PEF.
_ALONE, _TOGETHER = 8, 6
_FAULTS = (Outcome.WRONG, Outcome.BARE)


@pytest.mark.filterwarnings("ignore")  # what torch says of random programs
@pytest.mark.parametrize("precision", first_short(["f32", "bf16"]))
@pytest.mark.parametrize("mode", ["o0", "o1", "o3"])
def test_random_modules_are_right_or_refused(mode: str, precision: str, tmp_path: Path) -> None:
    first = 1000 * int(mode[1]) + (100 if precision == "bf16" else 0)
    groups = [[seed] for seed in range(first, first + _ALONE)]
    groups.append(list(range(first + _ALONE, first + _ALONE + _TOGETHER)))
    way, counted = Way(mode, "portable", precision), []
    for seeds in groups:
        programs = [generate(seed) for seed in seeds]
        for seed, program, verdict in zip(seeds, programs, judge_together(programs, way, tmp_path), strict=True):
            counted.append(verdict.outcome)
            assert verdict.outcome not in _FAULTS, (
                f"{verdict.cause}\n{verdict.detail}\n{class_text(program)}\n"
                f"again, and smaller: scripts/fuzz.py --seed {seed} --count 1 --mode {mode} --precision {precision}"
            )
    assert counted.count(Outcome.RIGHT) >= len(counted) / 2


def test_processes_that_judge_at_the_same_time_do_not_share_a_pef(tmp_path: Path) -> None:
    judge_together([generate(1)], Way("o0"), tmp_path)
    assert [path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*.pef")] == [str(os.getpid())]
