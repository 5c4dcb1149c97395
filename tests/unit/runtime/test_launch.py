"""Which rank a launcher made of this process."""

import pytest

from rdukit.errors import InvalidArgument
from rdukit_node.leases.launch import LAUNCHERS, LOOPBACK, Launcher, read_launch, slurm_job
from support import shows

pytestmark = shows("node")


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=lambda launcher: launcher.name)
def test_each_launchers_variables_give_rank_size_and_local_rank(launcher: Launcher) -> None:
    launch = read_launch({launcher.rank: "3", launcher.size: "4", launcher.local_rank: "1"})
    assert (launch.name, launch.rank, launch.world_size, launch.local_rank) == (launcher.name, 3, 4, 1)
    assert (launch.is_one_node, launch.address, launch.port) == (True, None, None)


def test_without_a_launcher_a_process_is_alone() -> None:
    for environ in (
        {},
        {"WORLD_SIZE": "8"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "16"},
        {"RANK": "", "WORLD_SIZE": ""},
    ):
        launch = read_launch(environ)
        assert (launch.rank, launch.world_size, launch.name) == (0, 1, "no launcher")


def test_mpirun_inside_a_slurm_step_counts_and_not_the_step() -> None:
    step = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_LOCALID": "0"}
    assert read_launch({**step, "PMI_RANK": "1", "PMI_SIZE": "2"}).name == "MPICH"
    assert read_launch({**step, "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}).world_size == 2


def test_ranks_on_several_nodes_are_noticed() -> None:
    assert not read_launch({"PMI_RANK": "0", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "2"}).is_one_node
    assert not read_launch({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "2"}).is_one_node


def test_where_ranks_meet_may_be_given_in_part() -> None:
    ranks = {"PMI_RANK": "0", "PMI_SIZE": "2"}
    both = read_launch({**ranks, "MASTER_ADDR": "node1", "MASTER_PORT": "1234"})
    assert (both.address, both.port) == ("node1", 1234)
    assert read_launch({**ranks, "MASTER_ADDR": "node1"}).port == 29500
    assert read_launch({**ranks, "MASTER_ADDR": LOOPBACK}).port is None
    assert read_launch({**ranks, "MASTER_PORT": "1234"}).address == LOOPBACK


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"RANK": "2", "WORLD_SIZE": "2"}, r"\$RANK is 2 and \$WORLD_SIZE is 2"),
        ({"PMI_RANK": "one", "PMI_SIZE": "2"}, r"\$PMI_RANK is 'one'; expected a whole number"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "http"}, r"\$MASTER_PORT is 'http'"),
    ],
)
def test_wrong_numbers_are_refused_with_the_variables_name(environ: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        read_launch(environ)


def test_a_slurm_jobs_number_is_what_the_nodes_tools_show() -> None:
    assert slurm_job({"SLURM_JOB_ID": "17"}) == "slurm-17"
    assert slurm_job({"SLURM_JOB_ID": " "}) is None
    assert slurm_job({}) is None
