"""Ranks that go on after one is killed: with the bits of a training that has fewer ranks from that step on."""

import os
import re
import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from rdukit.errors import InvalidArgument, PeerLost
from rdukit_runtime.collectives.elastic import check_device, open_elastic
from rdukit_runtime.collectives.group import Collectives
from rdukit_runtime.collectives.meeting import Roster, has_ended, serve_store
from rdukit_runtime.collectives.network import find_own_address
from rdukit_runtime.collectives.replacement import JoiningProcessGroup, JoiningRank, Offer, read_offer
from rdukit_runtime.process_group import renew_process_group
from support import shows
from support.forked import fork_python
from support.rank_programs import BATCH, TRAINS, compile_for_ranks

pytestmark = shows("lost-ranks", "settings")


@pytest.fixture(scope="module")
def pef(tmp_path_factory: pytest.TempPathFactory) -> str:
    return compile_for_ranks(tmp_path_factory.mktemp("pef"))


def train(
    folder: Path, pef: str, name: str, rows: Sequence[int], steps: tuple[int, int], *more: str,
    variables: Mapping[str, str] | None = None, lost: Sequence[int] = (), replaced: Sequence[int] = (),
) -> list[str]:  # fmt: skip
    """Train with a rank for each of ``rows``; returns what each printed. All but the ``lost`` ones must succeed.

    Each of the ``replaced`` ranks gets a new process, which must succeed, when it has ended.
    """
    words = ["-c", TRAINS, "run", "--data-parallel", "-b", str(BATCH), "--pef", pef, "--out", str(folder)]
    words += ["--name", name, "--rows", *map(str, rows), "--steps", *map(str, steps), *more]
    with ExitStack() as stack:

        def start(number: int, more: Mapping[str, str]) -> tuple[Any, Path]:
            told = folder / f"{name}-told{number}"
            file = stack.enter_context(told.open("ab"))
            environment = {
                **os.environ, "PMI_RANK": str(number), "PMI_SIZE": str(len(rows)), "OMP_NUM_THREADS": "1",
                "RDUKIT_DISTRIBUTED_GROUP_BYTES": "1", **(variables or {}), **more,
            }  # fmt: skip
            program = fork_python(words, environment, stdout=file.fileno(), stderr=file.fileno(), kind="sambaflow")
            stack.callback(program.wait, 60)
            stack.callback(program.kill)
            return program, told

        ranks = [start(number, {}) for number in range(len(rows))]
        for number in replaced:
            assert ranks[number][0].wait(120) != 0
            ranks[number] = start(number, {"REPLACES": "1"})
        for number, (program, told) in sorted(enumerate(ranks), key=lambda each: each[0] in lost):
            if number in lost and any("hang" in word for word in more):
                program.kill()
            status = program.wait(120)
            assert (status == 0) == (number not in lost), told.read_text()
        return [told.read_text() for _, told in ranks]


def check_equal(folder: Path, rows: Sequence[int], parts: Sequence[tuple[str, Sequence[int]]]) -> None:
    """Compare what ``elastic`` computed on the rows with the trainings that ``parts`` name, one after the other."""
    for row in rows:
        found = torch.load(folder / f"elastic{row}.pt")
        expected: dict[int, float] = {}
        for name, having in parts:
            if row in having:
                expected |= torch.load(folder / f"{name}{row}.pt")["losses"]
        assert found["losses"] == expected, row
        last = torch.load(folder / f"{parts[-1][0]}{row}.pt")
        assert torch.equal(found["gradient"], last["gradient"]), row
        for name, value in found["state"].items():
            assert torch.equal(value, last["state"][name]), (row, name)


ELASTIC = {"RDUKIT_DISTRIBUTED_ON_LOSS": "continue"}


@pytest.mark.parametrize(
    ("how", "more", "variables"),
    [
        ("within", (), {}),
        pytest.param("before", (), {}, marks=pytest.mark.long),
        pytest.param("within", (), {"RDUKIT_DISTRIBUTED_TRANSPORT": "gloo"}, marks=pytest.mark.long),
        pytest.param("after", (), {}, marks=pytest.mark.long),
        pytest.param("after", (), {"RDUKIT_DISTRIBUTED_TRANSPORT": "gloo"}, marks=pytest.mark.long),
        pytest.param("within", ("--split",), {}, marks=pytest.mark.long),
        pytest.param("within-hang", (), {"RDUKIT_DISTRIBUTED_TIMEOUT_S": "3"}, marks=pytest.mark.long),
    ],
)
def test_three_ranks_go_on_as_if_they_had_begun_the_step_alone(
    how: str, more: tuple[str, ...], variables: dict[str, str], pef: str, tmp_path: Path
) -> None:
    told = train(
        tmp_path, pef, "elastic", [0, 1, 2, 3], (0, 6), "--ends", f"2:3:{how}", *more, lost=[2],
        variables={**ELASTIC, **variables},
    )  # fmt: skip
    assert "rank 2 was lost at step 4; 3 ranks go on\n" in told[0]
    assert all("rank-lost" not in text for text in (told[1], told[3]))
    alone = 4 if how == "after" else 3  # all had the mean with the lost rank's gradients
    train(tmp_path, pef, "first", [0, 1, 2, 3], (0, alone))
    train(tmp_path, pef, "then", [0, 1, 3], (alone, 6), "--begin", str(tmp_path / "first0.pt"))
    check_equal(tmp_path, [0, 1, 3], [("first", [0, 1, 3]), ("then", [0, 1, 3])])
    found = torch.load(tmp_path / "elastic3.pt")
    assert found["ranks"] == (2, 3)
    assert [(loss["step"], loss["lost"], loss["ranks"]) for loss in found["reported"]] == [(4, [2], [0, 1, 3])]
    assert not [path for path in Path("/dev/shm").iterdir() if "rdukit" in path.name]


@pytest.mark.parametrize(
    ("lost", "how", "more", "variables"),
    [
        ([1], "within", (), {}),
        pytest.param([0], "within", (), {}, marks=pytest.mark.long),
        pytest.param([0], "before", (), {"RDUKIT_DISTRIBUTED_TRANSPORT": "gloo"}, marks=pytest.mark.long),
        pytest.param([1], "after", (), {}, marks=pytest.mark.long),
        pytest.param([1], "before", ("--split",), {}, marks=pytest.mark.long),
        pytest.param([0, 1], "within", (), {}, marks=pytest.mark.long),
    ],
)
def test_a_new_process_takes_a_killed_ranks_place_with_the_bits_of_an_undisturbed_training(
    lost: list[int], how: str, more: tuple[str, ...], variables: dict[str, str], pef: str, tmp_path: Path
) -> None:
    variables = {
        "RDUKIT_DISTRIBUTED_ON_LOSS": "replace", "RDUKIT_DISTRIBUTED_ROSTER": str(tmp_path / "roster"), **variables
    }  # fmt: skip
    rows = [0, 1, 2]
    ends = ("--ends", *(f"{rank}:{3 + place}:{how}" for place, rank in enumerate(lost)))
    told = train(tmp_path, pef, "elastic", rows, (0, 6), *ends, *more, replaced=lost, variables=variables)
    train(tmp_path, pef, "whole", rows, (0, 6))
    assert f"rank {lost[0]} lost at step 4; the others wait up to 120 s for a new process" in "".join(told)
    for place, rank in enumerate(lost):
        assert f"rank {rank} was lost at step {4 + place} and replaced after" in "".join(told)
        assert f"rank {rank} joined the others at step {4 + place}" in told[rank]
    for row in rows:
        found, expected = (torch.load(tmp_path / f"{name}{row}.pt") for name in ("elastic", "whole"))
        assert found["losses"] == {s: v for s, v in expected["losses"].items() if s in found["losses"]}, row
        assert min(found["losses"]) == (3 + lost.index(row) if row in lost else 0)
        assert torch.equal(found["gradient"], expected["gradient"])
        assert found["ranks"] == expected["ranks"]
        for name, value in found["state"].items():
            assert torch.equal(value, expected["state"][name]), (row, name)
        for kept, others in zip(
            found["optimizer"]["state"].values(), expected["optimizer"]["state"].values(), strict=True
        ):
            assert all(torch.equal(torch.as_tensor(kept[key]), torch.as_tensor(others[key])) for key in others)
    assert not list((tmp_path / "roster").glob("*")), "ranks that end by themselves remove their files"


@pytest.mark.long
def test_the_rank_that_the_others_met_at_may_be_lost_and_further_ones_after_it(pef: str, tmp_path: Path) -> None:
    ends = ("--ends", "0:2:before", "3:4:within", "2:5:before")
    train(tmp_path, pef, "elastic", [0, 1, 2, 3], (0, 7), *ends, lost=[0, 2, 3], variables=ELASTIC)
    parts: list[tuple[str, list[int]]] = []
    begin: tuple[str, ...] = ()
    for name, rows, first, last in (
        ("a", [0, 1, 2, 3], 0, 2), ("b", [1, 2, 3], 2, 4), ("c", [1, 2], 4, 5), ("d", [1], 5, 7)
    ):  # fmt: skip
        train(tmp_path, pef, name, rows, (first, last), *begin)
        begin = ("--begin", str(tmp_path / f"{name}{rows[0]}.pt"))
        parts.append((name, rows))
    check_equal(tmp_path, [1], parts)
    reported = torch.load(tmp_path / "elastic1.pt")["reported"]
    assert [(loss["step"], loss["lost"]) for loss in reported] == [(3, [0]), (5, [3]), (6, [2])]


@pytest.mark.long
def test_a_rank_that_was_given_up_ends_with_an_error_when_it_wakes(pef: str, tmp_path: Path) -> None:
    train(
        tmp_path, pef, "elastic", [0, 1, 2], (0, 5), "--ends", "0:2:within-wake", lost=[0],
        variables={**ELASTIC, "RDUKIT_DISTRIBUTED_TIMEOUT_S": "3", "WAKES": str(tmp_path / "elastic1.pt")},
    )  # fmt: skip
    text = (tmp_path / "elastic-told0").read_text()
    assert "PeerLost" in text and not (tmp_path / "elastic0.pt").exists()
    train(tmp_path, pef, "first", [0, 1, 2], (0, 2))
    train(tmp_path, pef, "then", [1, 2], (2, 5), "--begin", str(tmp_path / "first0.pt"))
    check_equal(tmp_path, [1, 2], [("first", [1, 2]), ("then", [1, 2])])


@pytest.mark.long
@pytest.mark.parametrize(
    ("variables", "lost", "said"),
    [
        ({"RDUKIT_DISTRIBUTED_FEWEST_RANKS": "3"}, "2:1:before", "2 ranks left, but distributed.fewest_ranks is 3"),
        ({"RDUKIT_DISTRIBUTED_ON_LOSS": "fail"}, "2:1:before", "Start all ranks again"),
    ],
)
def test_too_few_ranks_and_those_that_are_not_to_go_on_end_by_name(
    variables: dict[str, str], lost: str, said: str, pef: str, tmp_path: Path
) -> None:
    told = train(
        tmp_path, pef, "elastic", [0, 1, 2], (0, 3), "--ends", lost, lost=[0, 1, 2],
        variables={**ELASTIC, **variables},
    )  # fmt: skip
    for text in told[:2]:
        assert "PeerLost: rank" in text and said in text


@pytest.mark.long
@pytest.mark.parametrize("transport", ["auto", "gloo"])
def test_a_rank_that_is_lost_after_another_is_named_by_its_number_in_the_launch(
    transport: str, pef: str, tmp_path: Path
) -> None:
    variables = {"RDUKIT_DISTRIBUTED_FEWEST_RANKS": "3", "RDUKIT_DISTRIBUTED_TRANSPORT": transport}
    told = train(
        tmp_path, pef, "elastic", [0, 1, 2, 3], (0, 6), "--ends", "2:2:within", "3:4:within", lost=[0, 1, 2, 3],
        variables={**ELASTIC, **variables},
    )  # fmt: skip
    assert "rank 2 was lost at step 3; 3 ranks go on\n" in told[0]
    for rank in (0, 1):
        assert f"PeerLost: rank {rank} of the group of ranks 0, 1, 3 lost another rank while averaging" in told[rank]
        assert "rank 3 of the group of ranks 0, 1, 3 died or ended (" in told[rank]
        # The other one may have ended for this reason already: it is lost, too, and one rank is left.
        said = "lost at step 5, and the others cannot continue:"
        ends = f"rank 3 was {said} 2 ranks left|ranks {1 - rank}, 3 were {said} 1 rank left"
        assert re.search(f"(?:{ends}), but distributed.fewest_ranks is 3", told[rank])


class Differing(Collectives):
    """Two ranks of which the other one says something else."""

    def exchange(self, text: str) -> list[str]:
        return [text, "continue 2"]

    def barrier(self) -> None: ...

    _all_reduce = _reduce_scatter = _all_gather = _broadcast = _send = _recv = lambda *given: None  # type: ignore[assignment]


def test_ranks_that_choose_differently_and_a_gpu_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgument, match=r"rank 0 fail 1, rank 1 continue 2.*set distributed.on_loss and"):
        open_elastic(Differing(0, 2))
    check_device("cuda")
    monkeypatch.setenv("RDUKIT_DISTRIBUTED_ON_LOSS", "continue")
    check_device("cpu")
    with pytest.raises(InvalidArgument, match=r"distributed\.on_loss is continue, and the device cuda"):
        check_device("cuda")


def test_a_port_that_nobody_listens_at_proves_that_a_process_has_ended() -> None:
    address = find_own_address(None)
    with socket.create_server((address, 0)) as server:
        port = server.getsockname()[1]
        assert not has_ended((address, port))
    assert has_ended((address, port))


@pytest.mark.long
def test_without_a_new_process_in_time_the_others_go_on(pef: str, tmp_path: Path) -> None:
    variables = {
        "RDUKIT_DISTRIBUTED_ON_LOSS": "replace", "RDUKIT_DISTRIBUTED_ROSTER": str(tmp_path / "roster"),
        "RDUKIT_DISTRIBUTED_REPLACE_WAIT_S": "0.5",
    }  # fmt: skip
    told = train(
        tmp_path, pef, "elastic", [0, 1, 2], (0, 6), "--ends", "1:3:within", lost=[1], variables=variables
    )  # fmt: skip
    assert "rank 1 was lost at step 4; 2 ranks go on\n" in told[0]
    train(tmp_path, pef, "first", [0, 1, 2], (0, 3))
    train(tmp_path, pef, "then", [0, 2], (3, 6), "--begin", str(tmp_path / "first0.pt"))
    check_equal(tmp_path, [0, 2], [("first", [0, 2]), ("then", [0, 2])])


def test_a_new_process_learns_that_it_came_too_late_or_that_nobody_is_left() -> None:
    store = serve_store("mine")
    addresses = {0: ("127.0.0.1", store.port), 1: ("127.0.0.1", 1)}
    assert JoiningRank(1, Roster("of a training that had this port", addresses)).ask() is None
    candidate = JoiningRank(1, Roster("mine", addresses))
    store.set("lost/1", "1")
    with pytest.raises(PeerLost, match="continued without rank 1, because this process started too late"):
        candidate.ask()


def test_a_new_process_has_its_rank_and_refuses_collectives_until_it_has_joined() -> None:
    offer = Offer((0, 1, 3), 4, 1, 8, "pef", "gloo", 30.0, 1, {0: ("host", 7)})
    assert read_offer(offer.text) == offer
    group = JoiningProcessGroup(JoiningRank(3, Roster("mine", {})), offer)
    assert (group.rank(), group.size()) == (2, 3)
    with pytest.raises(PeerLost, match="rank 2 replaces a lost rank and cannot call allreduce"):
        group.allreduce([torch.ones(2)])


def test_a_rank_that_does_not_come_to_the_new_group_costs_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="rank 4 ended before joining the new group"):
        renew_process_group("gloo", serve_store("mine"), [0, 4], 0, timedelta(seconds=9), lambda peer: peer == 4)
    monkeypatch.setenv("RDUKIT_DISTRIBUTED_REGROUP_TIMEOUT_S", "0.1")
    with pytest.raises(RuntimeError, match=r"^rank 4 did not join the new group within 0\.1 s"):
        renew_process_group("gloo", serve_store("mine"), [0, 4], 0, timedelta(seconds=9), lambda peer: False)


#: Two trainings of one process lose the same rank; here a rank of its own.
TWO_TRAININGS = """
from datetime import timedelta
from rdukit.errors import PeerLost
from rdukit_runtime.collectives.elastic import open_elastic
from rdukit_runtime.engine.collectives import default_collectives
from rdukit_runtime.process_group import join_process_group

join_process_group(timedelta(seconds=10))
first, second = open_elastic(default_collectives()), open_elastic(default_collectives())
assert first.regroup(PeerLost("lost"), False)
try:
    second.regroup(PeerLost("lost"), False)
except PeerLost as error:
    print(error.message)
assert first.regroup(PeerLost("lost"), False), "its group is as it was"
"""


def test_a_second_training_of_a_process_does_not_take_the_new_group_of_the_first(tmp_path: Path) -> None:
    told = tmp_path / "told"
    with told.open("wb") as file:
        environment = {**os.environ, **ELASTIC}
        words = ["-c", TWO_TRAININGS]
        program = fork_python(words, environment, stdout=file.fileno(), stderr=file.fileno(), kind="sambaflow")
        assert program.wait(60) == 0, told.read_text()
    assert "rank 0 trains several PEFs" in told.read_text()
