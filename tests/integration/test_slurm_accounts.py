"""Slurm's accounts of jobs that ask for tiles, in a database that ``slurmdbd`` keeps."""

import pytest

from support import shows, wait_until
from support.slurm import slurm_cluster

pytestmark = [shows("slurm"), pytest.mark.long]


def test_slurm_accounts_for_the_tiles_of_a_job() -> None:
    with slurm_cluster(8, has_accounts=True) as slurm:
        job = slurm.call("sbatch", "--parsable", "--gres=rdu_tile:3", "--output=/dev/null", "--wrap=true")
        asked = ("sacct", "-X", "-n", "-P", "-j", job, "-o", "State,AllocTRES")
        wait_until(lambda: slurm.call(*asked, check=False).startswith("COMPLETED|"), 60)
        assert "gres/rdu_tile=3" in slurm.call(*asked).split("|")[1].split(",")
