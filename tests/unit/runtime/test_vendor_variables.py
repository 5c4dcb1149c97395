"""Variables of launch scripts for real systems: what has no effect here is said, what they cannot be is refused."""

from pathlib import Path

import pytest

from rdukit.errors import InvalidArgument
from rdukit_runtime.settings import AUTO, GLOO, read_transport
from rdukit_runtime.vendor_variables import ACTING, WITHOUT_EFFECT, find_notes
from support import shows

pytestmark = shows("collectives")

PAGE = Path(__file__).parents[3] / "docs" / "collectives.md"


def test_a_variable_that_asks_for_what_nothing_does_is_told_with_the_reason() -> None:
    launch = {
        "SAMBA_CCL_USE_PCIE_TRANSPORT": "0", "SAMBA_CCL_HIERARCHICAL_ALLREDUCE": "1", "SAMBA_CCL_ASYNC_ALLREDUCE": "0",
        "SAMBA_CCL_NUM_WORKERS": "1", "CCL_TIMEOUT": "3600", "SF_RNT_NUMA_BIND": "2", "FI_VERBS_IFACE": "eth",
        "SF_RNT_DMA_POLL_BUSY_WAIT": "",
    }  # fmt: skip
    assert find_notes(launch) == [
        "$SAMBA_CCL_HIERARCHICAL_ALLREDUCE=1 has no effect here: values are added in rank order for every algorithm",
        "$SAMBA_CCL_NUM_WORKERS=1 has no effect here: each rank adds its own slice, in one thread",
        "$FI_VERBS_IFACE=eth has no effect here: ranks use TCP, and GLOO_SOCKET_IFNAME chooses the interface",
        "$SF_RNT_NUMA_BIND=2 has no effect here: ranks run on the cores that the launcher gives them",
    ]
    assert find_notes({}) == []


def test_a_misspelt_variable_is_told_with_the_nearest_name() -> None:
    (note,) = find_notes({"SAMBA_CCL_ASYNC_ALLREDUCES": "1"})
    assert note.startswith("$SAMBA_CCL_ASYNC_ALLREDUCES is not known and has no effect. Did you mean 'SAMBA_CCL_ASYNC")


@pytest.mark.parametrize(
    ("name", "value", "legal"),
    [
        ("SAMBA_CCL_HIERARCHICAL_ALLREDUCE", "yes", "0, 1"),
        ("SAMBA_CCL_NUM_WORKERS", "0", "a positive number"),
        ("SAMBA_CCL_NUM_WORKERS", "-1", "a positive number"),
        ("SF_RNT_NUMA_BIND", "3", "0, 1, 2"),
    ],
)
def test_a_value_that_a_variable_cannot_have_is_refused(name: str, value: str, legal: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"^\${name}: '{value}' is not valid; expected {legal}$"):
        find_notes({name: value})


def test_a_transport_is_one_of_two_words_or_the_vendors_switch() -> None:
    assert [read_transport(text) for text in ("auto", "1", "Gloo", "0")] == [AUTO, AUTO, GLOO, GLOO]
    with pytest.raises(ValueError, match="'tcp' is not a transport; expected auto"):
        read_transport("tcp")


def test_the_page_names_every_variable() -> None:
    text = PAGE.read_text()
    assert [name for name in (*ACTING, *WITHOUT_EFFECT) if f"`{name}`" not in text] == []
