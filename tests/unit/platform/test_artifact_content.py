"""Content of artifacts as it is fetched in ranges, verified, and drawn with where it comes from."""

import xml.etree.ElementTree as ElementTree

import pytest

from rdukit.errors import RangeNotSatisfiable
from rdukit_platform.api.artifacts import read_range
from rdukit_platform.artifacts.picture import (
    MAX_NODES,
    LineageEdge,
    LineageNode,
    draw_lineage,
    graph_of,
    nearest,
    place,
)
from support import shows

pytestmark = shows("artifact", "artifacts")


@pytest.mark.parametrize(
    ("text", "found"),
    [(None, None), ("bytes=0-", (0, 10)), ("bytes=3-5", (3, 3)), ("bytes=3-99", (3, 7)), ("bytes=-4", (6, 4)),
     ("bytes=-99", (0, 10)), ("bytes=5-3", None), ("bytes=0-1,3-4", None), ("lines=1-2", None), ("bytes=-", None)],
)  # fmt: skip
def test_a_range_is_read_as_the_rfc_has_it(text: str | None, found: tuple[int, int] | None) -> None:
    assert read_range(text, 10) == found


@pytest.mark.parametrize("text", ["bytes=10-", "bytes=11-12", "bytes=-0"])
def test_a_range_behind_the_end_is_refused(text: str) -> None:
    with pytest.raises(RangeNotSatisfiable):
        read_range(text, 10)


def node(id: str, *, is_job: bool = False) -> LineageNode:
    return LineageNode(id, f"name of {id}", "sub", f"/console/{id}", is_job)


def test_each_node_lies_right_of_all_that_it_comes_from() -> None:
    nodes = [node(id) for id in "abcde"]
    edges = [
        LineageEdge("a", "b", ""),
        LineageEdge("b", "c", ""),
        LineageEdge("a", "c", ""),
        LineageEdge("d", "c", ""),
        LineageEdge("c", "e", ""),
    ]
    placed = place(nodes, edges)
    assert all(placed.at[edge.source][0] < placed.at[edge.target][0] for edge in edges)
    assert len(set(placed.at.values())) == len(nodes)
    assert all(x < placed.width and y < placed.height for x, y in placed.at.values())


def test_a_circle_ends_too() -> None:
    assert place([node("a"), node("b")], [LineageEdge("a", "b", ""), LineageEdge("b", "a", "")]).width > 0


def test_of_a_large_graph_the_nearest_are_drawn() -> None:
    nodes = [node(str(number)) for number in range(MAX_NODES + 5)]
    edges = [LineageEdge(str(number), str(number + 1), "") for number in range(MAX_NODES + 4)]
    assert nearest(nodes, edges, "0", 3) == {"0", "1", "2"}
    assert "and 5 further off" in draw_lineage(nodes, edges, "0")


def test_names_are_text_in_the_picture_and_deleted_ones_have_no_link() -> None:
    artifacts = [
        {"id": "art-1", "name": '<script>"&', "kind": "data", "job_id": None, "slot": None, "deleted_at": 5.0},
        {"id": "art-2", "name": "checkpoint", "kind": "checkpoint", "job_id": "job-1", "slot": "checkpoint"},
    ]
    links = [{"child": "art-2", "parent": "art-1", "slot": "dataset", "job_id": "job-1"}]
    nodes, edges = graph_of(artifacts, links, [{"id": "job-1", "name": "train", "box": "logreg", "verb": "train"}])
    assert edges == [LineageEdge("job-1", "art-2", "checkpoint"), LineageEdge("art-1", "job-1", "dataset")]
    picture = draw_lineage(nodes, edges, "art-2", "http://h", is_file=True)
    root = ElementTree.fromstring(picture)
    links_found = [a.attrib["href"] for a in root.iter("{http://www.w3.org/2000/svg}a")]
    assert links_found == ["http://h/console/artifacts/art-2", "http://h/console/jobs/job-1"]
    assert "<script" not in picture
