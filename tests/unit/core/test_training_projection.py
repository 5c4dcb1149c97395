"""Projections of data-parallel training: reduce, efficiency, failures, stragglers, cost."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from google.protobuf.proto import parse_length_prefixed

from rdukit.collectives import chakra
from rdukit.collectives.projection import (
    TrainingScenario,
    default_machine,
    lost_time,
    project_reduce,
    project_training,
    rank_tiles,
    reduce_sections,
)
from rdukit.collectives.topology import make_machine
from rdukit.collectives.training_cli import training
from rdukit.errors import InvalidArgument
from rdukit.hardware import CHIPS
from rdukit.pef.cli import explain
from rdukit.pef.file import write_pef
from rdukit.pef.model import SectionType
from rdukit.proto.chakra_pb2 import COMM_COLL_NODE, COMP_NODE, GlobalMetadata, Node
from support import shows
from support.pefs.examples import example_kernels, example_pef, training_pef

pytestmark = shows("simulate", "pef", "collective")

SIZE = reduce_sections(training_pef())[0].cost.bytes_in


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "training.pef"
    write_pef(path, training_pef(), example_kernels(), {})
    return path


def test_a_step_is_its_sections_and_the_reduce_of_the_ranks_asked_for() -> None:
    pef, machine = training_pef(), make_machine("128xSN10-8")
    one, eight, many = project_training(pef, machine, (1, 8, 1024), TrainingScenario())
    alone = sum(s.cost.seconds for s in pef.sections if s.type is not SectionType.REDUCE)
    assert one.reduce is None and one.step_s == pytest.approx(alone) and one.efficiency == 1
    assert eight.reduce is not None and many.reduce is not None
    assert eight.step_s == pytest.approx(alone + eight.reduce.seconds)
    assert many.efficiency < eight.efficiency < 1
    assert many.speedup == pytest.approx(1024 * many.efficiency)


def test_a_reduce_is_never_faster_than_device_memory() -> None:
    found = project_reduce(reduce_sections(training_pef()), make_machine("1xSN10-8"), 2)
    slow = replace(found, memory_s=1.0)
    assert slow.seconds == pytest.approx(1.0 + found.launch_s) and found.seconds < slow.seconds


def test_everybody_waits_for_a_straggler() -> None:
    machine = make_machine("1xSN10-8")
    usual, slowed = (
        project_training(training_pef(), machine, (4,), TrainingScenario(straggler=s))[0] for s in (1, 1.5)
    )
    assert slowed.step_s - usual.step_s == pytest.approx(0.5 * usual.sections_s)


def test_failures_cost_half_an_interval_and_a_restart_each_while_they_are_rare() -> None:
    scenario = TrainingScenario(mtbf_s=30 * 86400.0, checkpoint_every_s=600.0, checkpoint_s=6.0, restart_s=120.0)
    failures_per_s = 64 / scenario.mtbf_s
    expected = 6 / 600 + failures_per_s * (600 / 2 + 120)
    assert lost_time(scenario, 64) - 1 == pytest.approx(expected, rel=0.05)
    assert lost_time(scenario, 128) > lost_time(scenario, 64)
    assert lost_time(TrainingScenario(), 64) == 1


def test_a_training_that_never_gets_to_its_next_checkpoint_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="never finish"):
        lost_time(TrainingScenario(mtbf_s=3600.0, checkpoint_every_s=3600.0), 1024)
    with pytest.raises(InvalidArgument, match="needs --checkpoint-every"):
        lost_time(TrainingScenario(mtbf_s=3600.0), 2)


def test_a_pef_without_a_reduce_or_an_optimizer_is_refused() -> None:
    machine = make_machine("1xSN10-8")
    with pytest.raises(InvalidArgument, match="compiled with --data-parallel"):
        project_training(example_pef(), machine, (2,), TrainingScenario())
    pef = training_pef()
    forward = replace(pef, graphs={"main": replace(pef.graphs["main"], schedule=(0,))})
    with pytest.raises(InvalidArgument, match="no opt section"):
        project_training(forward, machine, (1,), TrainingScenario())


def test_ranks_take_the_least_part_of_an_rdu_that_divides_it() -> None:
    assert [rank_tiles(CHIPS["sn30"], tiles) for tiles in (1, 3, 4, 5, 8)] == [1, 4, 4, 8, 8]
    assert default_machine(CHIPS["sn30"], 4, 32).name == "2xSN30-8"
    with pytest.raises(InvalidArgument, match="more than one sn10 RDU"):
        rank_tiles(CHIPS["sn10"], 5)


def test_the_command_prints_tables_json_and_a_plot(file: Path, tmp_path: Path) -> None:
    plot = tmp_path / "a.svg"
    words = [str(file), "--topology", "16xSN10-8", "--ranks", "1,8,64", "--price", "2", "--plot", str(plot)]
    shown = CliRunner().invoke(training, words)
    assert shown.exit_code == 0, shown.output
    assert "projected" in shown.output and "assumed" in shown.output and "nothing overlaps" in shown.output
    assert plot.read_text().startswith("<svg") and "projected" in plot.read_text()
    value = json.loads(CliRunner().invoke(training, [*words[:-2], "--json"]).stdout)
    assert [point["ranks"] for point in value["points"]] == [1, 8, 64]
    last = value["points"][-1]["projected"]
    assert last["cost"] == pytest.approx(2 * value["points"][-1]["rdus"] * last["run_s"] / 3600)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ranks", "8,1"], "expected increasing numbers"),
        (["--ranks", "1,,8"], "expected increasing numbers"),
        (["--ranks", "4096"], "do not fit 16xSN10-8"),
        (["--ranks", "2", "--plot", "a.png"], "ends in .svg"),
        (["--ranks", "2", "--restart-time", "5m"], "has no effect"),
        (["--ranks", "2", "--checkpoint-time", "5s"], "has no effect"),
        (["--ranks", "2", "--mtbf", "0", "--checkpoint-every", "5m"], "expected a time above 0"),
    ],
)
def test_the_command_refuses_what_it_would_ignore(file: Path, words: list[str], message: str) -> None:
    shown = CliRunner().invoke(training, [str(file), "--topology", "16xSN10-8", *words])
    assert shown.exit_code != 0
    assert message in shown.output + str(shown.exception)


def read_chakra(file: Path) -> tuple[GlobalMetadata, list[Node]]:
    data, nodes = io.BytesIO(file.read_bytes()), list[Node]()
    head = parse_length_prefixed(GlobalMetadata, data)
    assert head is not None
    while (node := parse_length_prefixed(Node, data)) is not None:
        nodes.append(node)
    return head, nodes


def test_chakra_traces_have_a_node_for_each_section_and_a_collective_for_the_reduce(file: Path, tmp_path: Path) -> None:
    words = [str(file), "--topology", "1xSN10-8", "--ranks", "2,8", "--straggler", "3"]
    made = CliRunner().invoke(training, [*words, "--trace-chakra", str(tmp_path / "traces")])
    assert made.exit_code == 0, made.output
    assert sorted(p.name for p in (tmp_path / "traces").iterdir()) == [f"training.{rank}.et" for rank in range(8)]
    head, nodes = read_chakra(tmp_path / "traces" / "training.7.et")
    pef = training_pef()
    scheduled = [pef.sections[number] for graph in pef.main_graphs() for number in graph.schedule]
    assert head.version and [node.name for node in nodes] == [section.name for section in scheduled]
    assert [list(node.data_deps) for node in nodes] == [[], *([number] for number in range(len(nodes) - 1))]
    (reduce,) = (node for node in nodes if node.type == COMM_COLL_NODE)
    assert {a.name: a.int64_val for a in reduce.attr}["comm_size"] == SIZE
    computed = [node for node in nodes if node.type == COMP_NODE]
    seconds = sum(s.cost.seconds for s in scheduled if s.type is not SectionType.REDUCE)
    assert len(computed) == len(nodes) - 1
    assert sum(node.duration_micros for node in computed) == round(seconds * 1e6)
    slow = read_chakra(tmp_path / "traces" / "training.0.et")[1]
    assert sum(node.duration_micros for node in slow) == round(3 * seconds * 1e6)


def test_chakra_traces_that_would_fill_a_disk_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(chakra, "MAX_BYTES", 100)
    with pytest.raises(InvalidArgument, match="fewer --ranks"):
        chakra.write_chakra(tmp_path / "traces", "a", training_pef(), 8)
    assert not (tmp_path / "traces").exists()


def test_explain_projects_the_reduce_for_a_world_size_given_now(file: Path) -> None:
    seconds = []
    for ranks in ("2", "64"):
        value = json.loads(CliRunner().invoke(explain, [str(file), "--ranks", ranks, "--json"]).stdout)["reduce"]
        assert value["ranks"] == int(ranks) and value["algorithm"] != "-" and value["bytes"] == SIZE
        seconds.append(value["projected"]["seconds"])
    assert seconds[0] < seconds[1]
    shown = CliRunner().invoke(explain, [str(file), "--ranks", "64"])
    assert "Reduce among 64 ranks" in shown.output and "assumed" in shown.output
    assert "reduce" not in json.loads(CliRunner().invoke(explain, [str(file), "--json"]).stdout)
