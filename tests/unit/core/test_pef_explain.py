"""``rdukit pef explain``: who decided, what it takes, what bounds it."""

from dataclasses import replace

import pytest

from rdukit.cli.tables import format_table
from rdukit.errors import NotFound
from rdukit.pef.explain import bounds_table, explain_section, find_bound, find_sections, section_tables
from rdukit.pef.model import Section, pef_from_dict, pef_to_dict
from support import shows
from support.pefs.examples import example_pef

pytestmark = shows("pef")


def timed(**terms: float) -> Section:
    section = example_pef().sections[0]
    return replace(section, cost=replace(section.cost, **terms))


@pytest.mark.parametrize(
    ("terms", "bound"),
    [
        ({"compute_s": 3e-3, "memory_s": 2e-3, "launch_s": 1e-4}, "compute"),
        ({"compute_s": 1e-3, "memory_s": 2e-3, "launch_s": 1e-4}, "device memory"),
        ({"host_s": 2e-3, "launch_s": 1e-4}, "host link (IO)"),
        ({"peer_s": 2e-3, "launch_s": 1e-4}, "links to other RDUs"),
        ({"compute_s": 1e-6, "launch_s": 1e-4}, "launch"),
        ({}, "not recorded"),
    ],
)
def test_the_longest_term_bounds_a_section(terms: dict[str, float], bound: str) -> None:
    assert find_bound(timed(**terms)) == bound


def test_an_explanation_names_who_decided_and_what_is_used_of_what_there_is() -> None:
    pef = example_pef()
    section = replace(timed(memory_s=2e-3), decisions={"weights": "streamed", "gemms": {"fc": {"m_shard_degree": 4}}})
    found = explain_section(pef, section)
    assert found["decided_by"]["heuristic"] == "gemm"
    assert all(r["used"] <= r["available"] for r in found["resources"].values())
    text = "\n".join(format_table(table) for table in section_tables(pef, section))
    for word in ("SAFE_GEMM", section.why, "streamed", "m shard degree 4", "<- bound", "PCU", "SRAM"):
        assert word in text


def test_sections_are_found_by_id_name_and_operator() -> None:
    pef = example_pef()
    first = pef.sections[0]
    assert find_sections(pef, None, None) == list(pef.sections)
    assert find_sections(pef, "0", None) == find_sections(pef, first.name, None) == [first]
    assert find_sections(pef, None, first.operators[0]) == [first]
    assert len(bounds_table(pef, pef.sections).rows) == len(pef.sections)
    with pytest.raises(NotFound, match="no section 'x'"):
        find_sections(pef, "x", None)
    with pytest.raises(NotFound, match="has an operator 'x9'"):
        find_sections(pef, None, "x9")


def test_a_pef_without_decisions_is_read() -> None:
    value = pef_to_dict(example_pef())
    for section in value["sections"]:
        del section["decisions"]
        for term in ("compute_s", "memory_s", "peer_s", "host_s", "launch_s"):
            del section["cost"][term]
    assert find_bound(pef_from_dict(value).sections[0]) == "not recorded"
