"""Models of transformers, tiny and with random weights, are those of eager torch; ``docs/models.md`` tries all."""

from pathlib import Path

import pytest

from support import first_short, shows
from support.forked import run_python

pytestmark = shows("models", "pytorch")

TREE = Path(__file__).parents[2]
PROGRAM = """
import os, sys, warnings
sys.path.insert(0, sys.argv[1])
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", RDUKIT_NODE="private", RDUKIT_KERNELS="portable")
warnings.filterwarnings("ignore")
from build import build
from check import try_stage
from families import transformers_cases
(case,) = [case for case in transformers_cases() if case.name == sys.argv[2]]
built = build(case)
for stage, inputs in (("inference", built.inputs), ("training", {**built.inputs, **built.labels})):
    outcome, reason, _ = try_stage(built.make, inputs, stage, "o3", "portable", "f32")
    print(stage, outcome, reason)
"""


@pytest.mark.long
@pytest.mark.parametrize("name", first_short(["bert", "vit", "t5", "wav2vec2"]))
def test_a_model_of_transformers_infers_and_trains_as_in_eager_torch(name: str) -> None:
    ran = run_python(["-c", PROGRAM, str(TREE / "scripts/models"), name], kind="sambaflow", timeout_s=300)
    assert ran.returncode == 0, ran.stderr
    assert [line.split()[:2] for line in ran.stdout.splitlines()] == [["inference", "right"], ["training", "right"]]


def test_the_page_of_public_models_counts_no_model_as_wrong() -> None:
    rows = [line.split("|")[1:-1] for line in (TREE / "docs/models.md").read_text().splitlines() if "tiny |" in line]
    assert [int(row[5]) for row in rows] == [0, 0], "transformers, in inference and in training"
