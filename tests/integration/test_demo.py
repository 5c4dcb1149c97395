"""``rdukit demo``: from nothing to a model that reads digits, and nothing left running."""

import json
import os

from support import shows
from support.forked import run_rdukit_forked
from support.platform.chaos import leftovers
from support.platform.processes import short_folder

pytestmark = shows("demo", "logreg")


def test_the_demo_trains_a_model_that_reads_held_out_digits_and_leaves_nothing_running() -> None:
    with short_folder() as home:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "RDUKIT_KERNELS": "portable"}
        ran = run_rdukit_forked(["demo", "--home", str(home), "--json"], environment, timeout_s=300)
        assert ran.returncode == 0, ran.stderr
        outcome = json.loads(ran.stdout)
        assert outcome["state"] == "succeeded" and outcome["accuracy"] > 0.90
        steps = {each["name"].replace(".", " ").split()[0] for each in outcome["artifacts"]}
        assert steps == {"preprocess", "compile", "train", "infer"}
        assert leftovers([home]) == []
