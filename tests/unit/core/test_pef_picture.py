"""``rdukit pef graph``: the picture of sections and fusions."""

from dataclasses import replace
from xml.etree import ElementTree

from rdukit.pef.picture import MAX_OPERATORS, draw_pef, find_edges
from support import shows
from support.pefs.examples import example_pef

pytestmark = shows("pef")

SVG = "{http://www.w3.org/2000/svg}"


def chained():
    """The example with a third section that reads what the first made."""
    pef = example_pef()
    reader = replace(pef.sections[0], id=2, name="reader", inputs=("y",), outputs=("loss",), operators=("a<b>",))
    graph = replace(pef.graphs["main"], schedule=(0, 1, 2))
    return replace(pef, sections=(*pef.sections, reader), graphs={"main": graph})


def words(svg: str) -> str:
    return " ".join("".join(text.itertext()) for text in ElementTree.fromstring(svg).iter(f"{SVG}text"))


def test_every_section_is_a_box_in_the_column_of_its_type() -> None:
    boxes = list(ElementTree.fromstring(draw_pef(chained())).iter(f"{SVG}rect"))
    assert [box.get("class") for box in boxes] == ["box fwd", "box opt", "box fwd"]
    assert boxes[0].get("x") == boxes[2].get("x") != boxes[1].get("x")
    assert int(boxes[2].get("y")) >= int(boxes[0].get("y")) + int(boxes[0].get("height"))


def test_operators_rule_heuristic_and_projected_time_are_written() -> None:
    text = words(draw_pef(chained()))
    for word in ("fc", "mean", "rule SAFE_GEMM", "heuristic gemm", "projected 100 us", "12 PCU", "a<b>"):
        assert word in text


def test_edges_carry_the_bytes_and_weights_are_no_edges() -> None:
    pef = chained()
    (edge,) = find_edges(pef, pef.graphs["main"])
    assert (edge.source, edge.target, edge.symbols, edge.bytes) == (0, 2, ("y",), 32)
    assert "32 B" in words(draw_pef(pef))


def test_a_section_with_many_operators_names_some_and_counts_the_rest() -> None:
    pef = example_pef()
    names = tuple(f"op_{i}" for i in range(100))
    text = words(draw_pef(replace(pef, sections=(replace(pef.sections[0], operators=names), pef.sections[1]))))
    assert f"and {100 - MAX_OPERATORS} more operators" in text


def test_the_picture_has_colours_for_light_and_dark() -> None:
    assert "prefers-color-scheme: dark" in draw_pef(example_pef())


def test_a_pef_without_sections_is_still_a_picture() -> None:
    pef = example_pef()
    empty = replace(pef, sections=(), graphs={"main": replace(pef.graphs["main"], schedule=())})
    assert ElementTree.fromstring(draw_pef(empty)).tag == f"{SVG}svg"
