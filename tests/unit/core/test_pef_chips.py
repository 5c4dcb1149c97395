"""A PEF over several chips: memory and traffic of each chip, time of a step, and what no such PEF may say."""

from dataclasses import replace
from typing import Any

import pytest

from rdukit.errors import DoesNotFit, PefCorrupt
from rdukit.hardware import GIB
from rdukit.pef.chips import (
    JOINED,
    REDUCED,
    chip_shares,
    describe_chips,
    held_bytes,
    leased_bytes,
    projected_run,
    require_room,
    section_traffic,
    step_traffic,
    symbol_chips,
)
from rdukit.pef.model import (
    ChipPlan,
    Graph,
    Pef,
    Section,
    SectionType,
    Symbol,
    SymbolKind,
    pef_from_dict,
    pef_to_dict,
)
from support import shows
from support.pefs.examples import example_pef

pytestmark = shows("model-parallel", "pef")


def symbol(name: str, kind: SymbolKind, rows: int = 4, region: str = "", offset: int = 0) -> Symbol:
    return Symbol(name, kind, "float32", (rows, 8), "float32", region or name, offset=offset)


def two_chips() -> Pef:
    """Two chips with half of a weight each: both send their half of y to the other, which makes z of it."""
    pef = example_pef()
    kinds = {"x": SymbolKind.INPUT, "weight": SymbolKind.PARAMETER, "bias": SymbolKind.PARAMETER}
    symbols = [symbol(name, kind) for name, kind in kinds.items()]
    symbols += [symbol(f"weight_{c}", SymbolKind.PIECE, 2, "weight", 64 * c) for c in (0, 1)]
    symbols += [symbol(f"{name}_{c}", SymbolKind.ACTIVATION) for c in (0, 1) for name in "yz"]
    symbols += [symbol(f"y_{c}__grad_{d}", SymbolKind.GRADIENT) for c in (0, 1) for d in (0, 1)]
    symbols += [symbol(f"weight_{c}__grad", SymbolKind.GRADIENT, 2) for c in (0, 1)]
    symbols += [symbol(f"bias__grad_{c}", SymbolKind.GRADIENT) for c in (0, 1)]
    symbols += [symbol(f"{name}__grad", SymbolKind.GRADIENT) for name in ("weight", "bias")]
    symbols += [symbol("weight__momentum", SymbolKind.STATE)]
    sections: list[Section] = []

    def add(kind: SectionType, inputs: str, outputs: str, heuristic: str = "default") -> None:
        model = pef.sections[0]
        sections.append(
            replace(
                model, id=len(sections), type=kind, inputs=tuple(inputs.split()), outputs=tuple(outputs.split()),
                heuristic=heuristic, cost=replace(model.cost, seconds=1.0),
            )
        )  # fmt: skip

    for c in (0, 1):
        add(SectionType.FWD, f"x weight_{c}", f"y_{c}")
    for c in (0, 1):
        add(SectionType.FWD, "y_0 y_1 bias", f"z_{c}")
    for c in (1, 0):
        add(SectionType.BCKWD, f"z_{c} bias", f"y_0__grad_{c} y_1__grad_{c} bias__grad_{c}")
    for c in (1, 0):
        add(SectionType.BCKWD, f"x y_{c}__grad_0 y_{c}__grad_1", f"weight_{c}__grad")
    add(SectionType.BCKWD, "weight_0__grad weight_1__grad", "weight__grad", JOINED)
    add(SectionType.BCKWD, "bias__grad_0 bias__grad_1", "bias__grad", REDUCED)
    add(SectionType.OPT, "weight bias weight__grad bias__grad weight__momentum", "")
    gradients = {f"y_{c}": (f"y_{c}__grad_0", f"y_{c}__grad_1") for c in (0, 1)}
    gradients |= {name: (f"{name}__grad",) for name in ("weight", "bias")}
    graph = Graph("main", ("x",), (), tuple(range(len(sections))), {}, (), gradients)
    follows = {"weight__grad": "weight", "weight__momentum": "weight", "bias__grad": "bias"}
    plan = ChipPlan(
        2, "weight", ((0,), (1,), (0,), (1,), (1,), (0,), (1,), (0,), (0, 1), (0, 1), (0, 1)), follows, ("weight",), {}
    )
    return replace(
        pef, symbols={s.name: s for s in symbols}, sections=tuple(sections), graphs={"main": graph}, num_tiles=8,
        chips=plan,
    )  # fmt: skip


def test_it_is_read_as_it_was_written() -> None:
    pef = two_chips()
    assert pef_from_dict(pef_to_dict(pef)) == pef


def test_a_value_is_where_it_is_made_and_a_gradient_where_its_value_is() -> None:
    places = symbol_chips(two_chips())
    assert (places["y_1"], places["y_1__grad_0"], places["weight_1"]) == ((1,), (1,), (1,))
    assert places["x"] == places["bias"] == places["weight"] == places["weight__momentum"] == (0, 1)


def test_of_a_divided_parameter_and_its_states_each_chip_has_its_share() -> None:
    pef = two_chips()
    sizes = {name: held_bytes(pef, pef.symbols[name]) for name in ("weight", "weight__momentum", "weight_0", "bias")}
    assert sizes == {"weight": 64, "weight__momentum": 64, "weight_0": 0, "bias": 128}


def test_sections_read_over_links_and_send_gradients() -> None:
    pef = two_chips()
    places = symbol_chips(pef)
    assert section_traffic(pef, pef.sections[2], places) == {(1, 0): 128}, "chip 0 reads y_1"
    assert section_traffic(pef, pef.sections[4], places) == {(1, 0): 128}, "chip 1 sends the gradient of y_0"
    assert section_traffic(pef, pef.sections[8], places) == {}, "rows stay where they are"
    assert section_traffic(pef, pef.sections[9], places) == {(0, 1): 128, (1, 0): 128}, "2 (n - 1) / n of the bias"
    assert section_traffic(pef, pef.sections[10], places) == {}, "each chip updates what it has"
    assert step_traffic(pef) == {(0, 1): 384, (1, 0): 384}
    assert step_traffic(pef, [2]) == {(1, 0): 128}


def test_chips_run_at_the_same_time_and_wait_for_what_they_read() -> None:
    pef = two_chips()
    assert projected_run(pef, pef.sections) == 4.0 + 3.0
    assert projected_run(replace(pef, chips=None), pef.sections) == 11.0
    assert projected_run(pef, pef.sections[1:3]) == 2.0, "chip 0 waits for chip 1"


def test_shares_count_a_sum_of_gradients_once_and_no_copies_of_what_stays() -> None:
    pef = two_chips()
    first, second = chip_shares(pef)
    assert first.held == {
        "parameters": 192, "buffers": 0, "optimizer states": 64, "gradients": 192, "inputs": 128
    }  # fmt: skip
    assert (first.received_bytes, first.sent_bytes, first.sections, second.sections) == (384, 384, 7, 7)
    persistent = 192 + 64 + 128
    # At the peak chip 0 has y_0 and z_0, or the sum of its gradient and its own of the bias.
    assert 2 * 128 <= first.peak_bytes - persistent <= 3 * 128
    assert leased_bytes(pef) - 2 * max(first.peak_bytes, second.peak_bytes) > 0, "a margin on each"
    assert describe_chips(pef)["chips"]["shares"][1]["bytes"]["peak"] == second.peak_bytes


def test_a_model_that_is_too_big_for_its_chips_is_refused_with_what_to_try() -> None:
    pef = two_chips()
    require_room(pef)
    rows = 20 * GIB
    big = {name: replace(s, shape=(rows, 8)) if s.region in {"weight__momentum", "weight__grad"} else s
           for name, s in pef.symbols.items()}  # fmt: skip
    big |= {"weight": replace(big["weight"], shape=(rows, 8))}
    with pytest.raises(DoesNotFit, match=r"each of 2 RDUs, .* has 384 GiB; .* --n-chips 4 --tensor-parallel weight"):
        require_room(replace(pef, symbols=big))
    with pytest.raises(DoesNotFit, match="of one RDU"):
        require_room(replace(pef, symbols=big, chips=None))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": 1}, "for 1 chips"),
        ({"count": 3}, "for 3 chips and 8 tiles"),
        ({"sections": ((0,),)}, "places 1 of 11 sections"),
        ({"sections": ((2,), *((0,),) * 10)}, "on a chip outside the 2 planned ones"),
        ({"divided": ("nothing",)}, "places symbol 'nothing'"),
        ({"follows": {"weight__grad": "nothing"}}, "places symbol 'nothing'"),
        ({"how": 3}, "how is 3"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(change: dict[str, Any], message: str) -> None:
    pef = two_chips()
    assert pef.chips is not None
    with pytest.raises(PefCorrupt, match=message):
        pef_from_dict(pef_to_dict(replace(pef, chips=replace(pef.chips, **change))))


@pytest.mark.parametrize("offset", [-4, 65, 128])
def test_a_piece_outside_of_its_parameter_is_refused(offset: int) -> None:
    pef = two_chips()
    symbols = {**pef.symbols, "weight_1": replace(pef.symbols["weight_1"], offset=offset)}
    with pytest.raises(PefCorrupt, match="symbol 'weight_1' is not within the memory of 'weight'"):
        pef_from_dict(pef_to_dict(replace(pef, symbols=symbols)))
