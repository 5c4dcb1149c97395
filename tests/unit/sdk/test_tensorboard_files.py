"""``--gen-tensorboard``: the event file has the graph of all sections, with edges, and their projected figures."""

import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.graph_pb2 import GraphDef

from rdukit.hardware import find_chip
from rdukit.pef.file import read_pef, write_pef
from sambaflow.sessions.tensorboard_files import make_graph, section_figures, write_event_file
from support import shows
from support.pefs.examples import example_kernels, example_pef

pytestmark = shows("sambatune")


def read_events(path: Path) -> Iterator[Any]:
    """Yield the events of a file of TensorFlow's records: length, its checksum, data, its checksum."""
    data = path.read_bytes()
    place = 0
    while place < len(data):
        (size,) = struct.unpack_from("<Q", data, place)
        yield Event.FromString(data[place + 12 : place + 12 + size])
        place += 12 + size + 4


def write(folder: Path) -> Path:
    write_pef(folder / "example.pef", example_pef(), example_kernels(), {})
    return write_event_file(read_pef(folder / "example.pef"), folder / "tensorboard")


def test_the_event_file_has_graph_and_figures_and_replaces_an_earlier_one(tmp_path: Path) -> None:
    write(tmp_path)
    (path,) = write(tmp_path).iterdir()
    events = list(read_events(path))
    (graph,) = [GraphDef.FromString(event.graph_def) for event in events if event.graph_def]
    nodes = {node.name: node for node in graph.node}
    product = nodes["main/0_linear/y"]
    assert product.op == "aten.addmm.default"
    assert list(product.input) == ["tensors/bias", "tensors/x", "main/0_linear/turned"]
    assert nodes["tensors/weight"].op == "parameter"
    assert all(name in nodes for node in graph.node for name in node.input)
    figures = {(value.tag, event.step): value.simple_value for event in events for value in event.summary.value}
    for section in example_pef().sections:
        assert figures["projected/seconds", section.id] == pytest.approx(section.cost.seconds)


def test_event_files_of_the_program_stay(tmp_path: Path) -> None:
    own = tmp_path / "tensorboard" / "events.out.tfevents.1700000000.host"
    own.parent.mkdir()
    own.write_bytes(b"losses")
    write(tmp_path)
    write(tmp_path)
    assert own.read_bytes() == b"losses"
    assert len(list(own.parent.iterdir())) == 2


def test_a_section_reads_what_an_earlier_one_made() -> None:
    pef = example_pef()
    second = replace(pef.sections[1], inputs=("weight.next",))
    kernels = example_kernels()
    first = replace(second, id=0, inputs=("weight",), outputs=("weight.next",))
    graph = make_graph(replace(pef, sections=(first, replace(second, id=1, outputs=("weight.next",)))), kernels)
    nodes = {node.name: list(node.input) for node in graph.node}
    assert nodes == {
        "tensors/weight": [], "main/0_sgd/new": ["tensors/weight"], "main/1_sgd/new": ["main/0_sgd/new"],
    }  # fmt: skip


def test_foreign_and_equal_names_become_names_of_one_level_each() -> None:
    pef = example_pef()
    sections = tuple(replace(section, name="../a b", graph="<x>") for section in pef.sections)
    graph = make_graph(replace(pef, sections=sections), example_kernels())
    names = [node.name for node in graph.node]
    assert len(set(names)) == len(names)
    assert {name.count("/") for name in names if not name.startswith("tensors/")} == {2}
    assert "x_/0_.._a_b/y" in names


def test_utilization_is_of_the_tiles_that_a_section_has() -> None:
    section = example_pef().sections[0]
    chip = find_chip("sn30")
    assert section_figures(section, chip)["projected/pcu_utilization"] == section.resources.pcus / chip.pcus_per_tile
