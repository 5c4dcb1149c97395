from hypothesis import given
from hypothesis import strategies as st

from rdukit_node.status_page import (
    ARGUMENT_LOAD,
    EXECUTE,
    HOST,
    PAGE_BYTES,
    PageValues,
    PageWord,
    StatusPage,
    private_page,
)
from support import shows

pytestmark = shows("node", "isolation")


def test_a_new_page_counts_nothing() -> None:
    assert private_page().read() == PageValues()


def test_runs_and_transfers_add_up() -> None:
    page = private_page()
    for _ in range(3):
        page.enter(EXECUTE)
        page.count_run(2, 100, 1000, 64, 32)
    page.count_transfer(10, 5)
    page.count_transfer(10, 5)
    values = page.read()
    assert (values.runs, values.sections, values.cycles, values.flops) == (3, 6, 300, 3000)
    assert (values.ddr_read, values.ddr_written, values.bytes) == (192, 96, 288)
    assert (values.pcie_rx, values.pcie_tx) == (20, 10)
    assert values.phase == HOST
    assert values.phase_ns[EXECUTE - 1] > 0


def test_a_repeated_run_counts_as_a_run_with_its_transfers() -> None:
    page = private_page()
    page.enter(EXECUTE)
    page.count_run(2, 100, 1000, 64, 32, 10**12, 10, 5)
    values = page.read()
    assert (values.runs, values.sections, values.cycles, values.flops) == (1, 2, 100, 1000)
    assert (values.ddr_read, values.ddr_written, values.pcie_rx, values.pcie_tx) == (64, 32, 10, 5)
    assert values.phase == HOST
    # No time is negative, whatever the clocks said.
    assert values.phase_ns[EXECUTE - 1] == 0 and values.phase_ns[ARGUMENT_LOAD - 1] == 10**12


def test_the_time_of_a_phase_is_booked_when_it_ends_and_shown_while_it_lasts() -> None:
    page = private_page()
    assert page.enter(EXECUTE) == HOST
    first = page.read().phase_ns[0]
    assert page.read().phase_ns[0] > first > 0
    assert page.enter(ARGUMENT_LOAD) == EXECUTE
    booked = page.read().phase_ns[0]
    assert page.read().phase_ns[0] == booked
    assert page.read().phase == ARGUMENT_LOAD


def test_an_interrupt_is_a_word_that_the_application_looks_at() -> None:
    memory = memoryview(bytearray(PAGE_BYTES))
    application, daemon = StatusPage(memory), StatusPage(memory)
    assert application.interrupts == 0
    daemon.interrupt()
    assert application.interrupts == application.words[PageWord.INTERRUPTS] == 1


def test_flops_beyond_63_bits_wrap_and_do_not_raise() -> None:
    page = private_page()
    for _ in range(3):
        page.count_run(1, 1, 2**62, 0, 0)
    assert 0 <= page.read().flops < 2**63


@given(st.lists(st.integers(0, 2**64 - 1), min_size=18, max_size=18))
def test_whatever_a_hostile_application_writes_the_daemon_reads_bounded_whole_numbers(content: list[int]) -> None:
    page = private_page()
    for position, word in enumerate(content):
        page.words[position] = word
    values = page.read()
    assert 0 <= values.phase <= 5
    assert all(0 <= value < 2**64 for value in (*values.phase_ns, values.runs, values.flops, values.pcie_tx))


def test_bytes_between_a_lease_s_chips_are_counted_by_chip_and_as_bytes_over_pcie() -> None:
    page = private_page()
    page.count_transfer(10, 5)
    for _ in range(2):
        page.count_links((3, 4), (4, 3))
    values = page.read()
    assert (values.link_rx[:3], values.link_tx[:3]) == ((6, 8, 0), (8, 6, 0))
    assert (values.pcie_rx, values.pcie_tx) == (24, 19)
    page.move(memoryview(bytearray(PAGE_BYTES)))
    assert page.read() == values
