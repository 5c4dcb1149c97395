"""Thousands of PEFs with something changed: each runs, or is refused with a reason; none kills its process.

``make test`` tries a few hundred, ``make integration`` ten thousand (``RDUKIT_TEST_MUTATIONS``).
"""

import collections
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rdukit.fence.kernel import landlock_abi
from support import shows
from support.pefs import trial
from support.pefs.examples import write_example_pef
from support.pefs.mutations import mutate_pef

pytestmark = shows("security")

COUNT = int(os.environ.get("RDUKIT_TEST_MUTATIONS", "200"))
DATA = Path(__file__).parents[1] / "data" / "pef"
#: Mutations that one process tries; the next ones get another.
GROUP = 500


def make_seeds(folder: Path) -> list[Path]:
    """PEFs to change: of earlier versions, an example with a library, and what a program of today compiles."""
    folder.mkdir()
    found = [Path(shutil.copy(path, folder)) for path in sorted(DATA.glob("*.pef"))]
    found.append(write_example_pef(folder / "example.pef", natives=True))
    program = Path(__file__).with_name("seed_programs.py")
    subprocess.run([sys.executable, program, folder], check=True, timeout=300, env=environment(folder))
    found += sorted(folder.glob("seed_*.pef"))
    assert len(found) >= 9
    return found


def environment(folder: Path) -> dict[str, str]:
    return {
        **os.environ, "RDUKIT_HOME": str(folder / "home"), "RDUKIT_NODE": "private", "RDUKIT_KERNELS": "portable",
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip


def judge(folder: Path, paths: list[Path]) -> dict[Path, str]:
    """What became of each; a process that dies is started again behind the one that killed it."""
    found: dict[Path, str] = {}
    left = list(paths)
    while left:
        tried = subprocess.run(
            [sys.executable, "-P", trial.__file__, folder], cwd=folder, env=environment(folder),
            input="".join(f"{path}\n" for path in left), text=True, capture_output=True, check=False,
        )  # fmt: skip
        told = [line for line in tried.stdout.splitlines() if line.startswith(("ran", "refused ", "bare "))]
        found.update(zip(left, told, strict=False))
        left = left[len(told) :]
        if left:
            found[left.pop(0)] = f"died {tried.returncode}: {tried.stderr.strip()[-300:]}"
    return found


@pytest.mark.long
def test_a_pef_that_was_changed_anywhere_runs_or_is_refused(tmp_path: Path) -> None:
    try:
        landlock_abi()
    except OSError as error:
        pytest.skip(f"the trial's process cannot be confined here: no Landlock ({error})")
    folder = tmp_path / "job"
    seeds = make_seeds(folder)
    assert set(judge(folder, seeds).values()) == {"ran"}
    before = {path for path in tmp_path.rglob("*") if "home" not in path.parts}
    outcomes: collections.Counter[str] = collections.Counter()
    faults: list[str] = []
    for start in range(0, COUNT, GROUP):
        paths = []
        for number in range(start, min(start + GROUP, COUNT)):
            path = folder / f"mutated_{number}.pef"
            shutil.copy(seeds[number % len(seeds)], path)
            paths.append(mutate_pef(path, number))
        for path, told in judge(folder, paths).items():
            outcomes[" ".join(told.split()[:2])] += 1
            if not told.startswith(("ran", "refused ")) or told in {"refused internal", "refused permission-denied"}:
                faults.append(f"{path.name} of {seeds[int(path.stem.split('_')[1]) % len(seeds)].name}: {told}")
            else:
                path.unlink()
    print(dict(outcomes.most_common()))
    assert not faults, "\n".join(faults[:20])
    assert {path for path in tmp_path.rglob("*") if "home" not in path.parts} == before
    assert outcomes["ran"] and outcomes["refused pef-corrupt"] and outcomes["refused pef-not-allowed"]
