"""Plans of collectives: closed forms against the textbook and the event model, choices, broken links."""

import json
from dataclasses import replace
from itertools import pairwise
from math import ceil, log2
from pathlib import Path

import pytest
from click.testing import CliRunner

from rdukit.collectives.cli import collective
from rdukit.collectives.events import goal_trace, simulate
from rdukit.collectives.formulas import count_messages, find_formula
from rdukit.collectives.plan import find_formulas, plan_collective
from rdukit.collectives.steps import CollectiveAlgorithm, NotApplicable, Op, ring_order, steps_of
from rdukit.collectives.topology import Machine, break_links, flat_machine, make_machine, tiers
from rdukit.errors import InvalidArgument
from support import shows

pytestmark = shows("collective")

LATENCY, BANDWIDTH, ADD = 5e-6, 10e9, 40e9
LINK = {"ports": 1, "latency_us": 5.0, "gb_s": 10.0}
SIZES = (10**3, 10**6, 10**9)
FIVE = (
    CollectiveAlgorithm.RING, CollectiveAlgorithm.BIDIRECTIONAL_RINGS,
    CollectiveAlgorithm.ALL_TO_ALL, CollectiveAlgorithm.RECURSIVE_DOUBLING,
    CollectiveAlgorithm.HALVING_DOUBLING,
)  # fmt: skip


def switch(ranks: int) -> Machine:
    return flat_machine("switch", ranks, {**LINK, "wiring": "switch"}, 40.0)


def mesh(ranks: int) -> Machine:
    return flat_machine("mesh", ranks, {**LINK, "wiring": "mesh"}, 40.0)


def textbook(algorithm: CollectiveAlgorithm, p: int, size: float, *, is_mesh: bool) -> float:
    """The formulas of textbooks for one level of links and a power of two of ranks."""
    a, b, g = LATENCY, 1 / BANDWIDTH, 1 / ADD
    part = (p - 1) / p * size
    both = 2 if is_mesh and p > 2 else 1  # a port carries both directions' messages
    match algorithm:
        case CollectiveAlgorithm.RING:
            return 2 * (p - 1) * a + 2 * part * b + part * g
        case CollectiveAlgorithm.BIDIRECTIONAL_RINGS:
            return 2 * (p - 1) * a + 2 * part * b / both + part * g
        case CollectiveAlgorithm.ALL_TO_ALL if is_mesh:
            return 2 * a + 2 * size / p * b + part * g
        case CollectiveAlgorithm.ALL_TO_ALL:
            return 2 * (p - 1) * a + 2 * part * b + part * g
        case CollectiveAlgorithm.RECURSIVE_DOUBLING:
            return ceil(log2(p)) * (a + size * b + size * g)
        case CollectiveAlgorithm.HALVING_DOUBLING:
            return 2 * ceil(log2(p)) * a + 2 * part * b + part * g
    raise AssertionError(algorithm)


@pytest.mark.parametrize("algorithm", FIVE)
@pytest.mark.parametrize("is_mesh", [False, True], ids=["switch", "mesh"])
def test_closed_forms_on_one_level_are_the_textbooks(algorithm: CollectiveAlgorithm, is_mesh: bool) -> None:
    for ranks in (2, 4, 16, 128, 1024):
        formula = find_formula(algorithm, Op.ALLREDUCE, (mesh if is_mesh else switch)(ranks), ranks)
        for size in SIZES:
            expected = textbook(algorithm, ranks, size, is_mesh=is_mesh)
            assert formula.terms(size).seconds == pytest.approx(expected, rel=1e-9), (ranks, size)


def test_a_hierarchy_of_16_ranks_in_64_nodes_has_the_textbooks_terms() -> None:
    """Both levels of one class: 2(g-1) + 2(m-1) messages one after the other, 0.78 ms at 5 us each."""
    machine = make_machine("64xSN40L-16")
    formula = find_formula(CollectiveAlgorithm.HIERARCHICAL_SHARDED, Op.ALLREDUCE, machine, 1024)
    rdu, xrdu, node = (level for level in machine.levels if level.size > 1)
    terms = formula.terms(1e9)
    assert terms.latency_s == pytest.approx(2 * rdu.latency_s + 2 * 7 * xrdu.latency_s + 2 * 63 * node.latency_s)
    inside = 2 * (1 / 2) * 1e9 / rdu.bandwidth + 2 * (7 / 8) * 0.5e9 / xrdu.bandwidth
    between = 2 * (63 / 64) * 1e9 / 16 / node.bandwidth * 16 / node.ports
    assert terms.bandwidth_s == pytest.approx(inside + between)


def machines(ranks: int) -> list[Machine]:
    nodes = max(1, ceil(ranks / 8))
    return [switch(ranks), mesh(ranks), make_machine(f"{nodes}xSN30-8")]


def largest_error(ranks: int, algorithms: tuple[CollectiveAlgorithm, ...], op: Op = Op.ALLREDUCE) -> tuple[float, int]:
    worst, compared = 0.0, 0
    for machine in machines(ranks):
        for algorithm in algorithms:
            try:
                formula = find_formula(algorithm, op, machine, ranks)
            except NotApplicable:
                continue
            for size in SIZES:
                seconds = simulate(algorithm, op, machine, ranks, size)
                worst = max(worst, abs(formula.terms(size).seconds / seconds - 1))
                compared += 1
    return worst, compared


@pytest.mark.parametrize("ranks", [2, 3, 8, 16, 29])
def test_closed_forms_agree_with_the_event_model(ranks: int) -> None:
    worst, compared = largest_error(ranks, tuple(CollectiveAlgorithm))
    assert compared >= 3 * len(SIZES)
    assert worst <= 0.01


@pytest.mark.parametrize("op", [Op.REDUCE_SCATTER, Op.ALLGATHER, Op.BROADCAST])
def test_closed_forms_of_other_operations_agree_with_the_event_model(op: Op) -> None:
    worst, compared = largest_error(16, tuple(CollectiveAlgorithm), op)
    assert compared >= 2 * len(SIZES)
    assert worst <= 0.01


@pytest.mark.long
@pytest.mark.parametrize("ranks", [61, 64, 256, 1024])
def test_closed_forms_agree_with_the_event_model_for_many_ranks(ranks: int) -> None:
    worst, _ = largest_error(ranks, tuple(CollectiveAlgorithm))
    assert worst <= 0.01


def test_every_rank_ends_with_every_part() -> None:
    """The steps of reduce and gather, followed as sets: who has contributions of whom to which bytes."""
    for ranks in (2, 5, 8, 12):
        used = tiers(make_machine("2xSN30-8"), ranks)
        for algorithm in (CollectiveAlgorithm.RECURSIVE_DOUBLING, CollectiveAlgorithm.RING):
            has = [{rank} for rank in range(ranks)]
            for step in steps_of(algorithm, Op.ALLREDUCE, used, ranks):
                for _ in range(step.count):
                    sent = [(b, set(has[a])) for a in range(ranks) for b in step.partners(a)]
                    for receiver, ranks_of in sent:
                        has[receiver] |= ranks_of
            assert all(each == set(range(ranks)) for each in has), (algorithm, ranks)


def test_a_broadcast_reaches_everybody_from_rank_0() -> None:
    for algorithm in (CollectiveAlgorithm.TREE, CollectiveAlgorithm.HIERARCHICAL_LEADER):
        has = {0}
        for step in steps_of(algorithm, Op.BROADCAST, tiers(make_machine("4xSN30-8"), 32), 32):
            has |= {b for a in has for b in step.partners(a)}
        assert has == set(range(32))


def test_messages_that_share_links_are_counted_by_rule_as_one_by_one() -> None:
    used = tiers(make_machine("rack:2x2xSN30-8"), 32)
    for step in steps_of(CollectiveAlgorithm.ALL_TO_ALL, Op.ALLREDUCE, used, 32):
        one_by_one = count_messages(replace(step, shift=0, is_even=False), used, 32)
        assert count_messages(step, used, 32) == one_by_one, step.shift


@pytest.mark.parametrize("name", ["128xSN30-8", "rack:8x16xSN30-8"])
def test_1024_ranks_have_a_plan_with_terms_for_each_algorithm_of_an_allreduce(name: str) -> None:
    found = plan_collective(Op.ALLREDUCE, make_machine(name), 1024, 10**9)
    without = {c.algorithm for c in found.candidates if c.terms is None}
    assert found.chosen is not None and without == {CollectiveAlgorithm.TREE}


def test_small_vectors_choose_few_messages_and_large_ones_little_traffic() -> None:
    machine = make_machine("8xSN30-8")
    small = plan_collective(Op.ALLREDUCE, machine, 64, 1000)
    large = plan_collective(Op.ALLREDUCE, machine, 64, 10**9)
    assert small.chosen is CollectiveAlgorithm.RECURSIVE_DOUBLING and "less latency" in small.why
    assert large.chosen is CollectiveAlgorithm.BIDIRECTIONAL_RINGS and "less bandwidth" in large.why


def test_the_choice_changes_where_the_plan_says() -> None:
    machine = make_machine("8xSN30-8")
    crossovers = plan_collective(Op.ALLREDUCE, machine, 64, 10**6).crossovers
    assert len(crossovers) >= 3
    for before, after in pairwise(crossovers):
        below = plan_collective(Op.ALLREDUCE, machine, 64, int(after.size / 1.01)).chosen
        above = plan_collective(Op.ALLREDUCE, machine, 64, int(after.size * 1.01)).chosen
        assert (below, above) == (before.algorithm, after.algorithm)


def test_one_rank_has_nothing_to_exchange() -> None:
    plan = plan_collective(Op.ALLREDUCE, make_machine("1xSN30-8"), 1, 10**6)
    assert plan.chosen is None and plan.terms.seconds == 0.0


def test_the_latency_of_a_flat_ring_over_1024_ranks_is_counted() -> None:
    terms = find_formula(CollectiveAlgorithm.RING, Op.ALLREDUCE, switch(1024), 1024).terms(1000)
    assert terms.latency_s == pytest.approx(2 * 1023 * 5e-6)


@pytest.mark.parametrize(
    ("topology", "ranks", "link"),
    [
        ("1xSN30-8", 8, "xrdu0-xrdu1"), ("1xSN30-8", 8, "xrdu0/rdu0-rdu1"), ("4xSN30-8", 32, "node1.port0"),
        ("4xSN30-8", 32, "node2/xrdu1-xrdu3"), ("2xSN40L-16", 32, "node0/xrdu7/rdu0-rdu1"),
    ],
)  # fmt: skip
def test_a_broken_link_never_makes_a_projection_too_short(topology: str, ranks: int, link: str) -> None:
    """Detours are exact in the event model; closed forms let each step of the level wait for them."""
    machine = make_machine(topology)
    broken = break_links(machine, [link])
    formulas, _ = find_formulas(Op.ALLREDUCE, broken, ranks)
    whole, _ = find_formulas(Op.ALLREDUCE, machine, ranks)
    for algorithm, formula in formulas.items():
        for size in SIZES:
            seconds = formula.terms(size).seconds
            assert seconds >= whole[algorithm].terms(size).seconds * (1 - 1e-9), algorithm
            if "port" not in link:
                assert simulate(algorithm, Op.ALLREDUCE, broken, ranks, size) <= seconds * 1.01, algorithm


def test_a_ring_goes_around_a_broken_link_at_no_cost_and_says_so() -> None:
    machine = make_machine("1xSN30-8")
    broken = break_links(machine, ["xrdu0-xrdu1"])
    plans = [plan_collective(Op.ALLREDUCE, each, 8, 10**9, CollectiveAlgorithm.RING) for each in (machine, broken)]
    assert plans[0].terms == plans[1].terms
    assert plans[1].notes == ("xrdu0-xrdu1 is broken: the ring goes around it, in the order xrdu0 xrdu2 xrdu1 xrdu3",)
    units = [rank // 2 for rank in ring_order(tiers(broken, 8), 8)]
    assert {frozenset(pair) for pair in zip(units, units[1:] + units[:1], strict=True)}.isdisjoint({frozenset({0, 1})})


def test_a_broken_link_outside_of_the_ranks_is_said_to_be_unused() -> None:
    broken = break_links(make_machine("2xSN30-8"), ["node1/xrdu0-xrdu1"])
    plan = plan_collective(Op.ALLREDUCE, broken, 8, 10**6)
    assert plan.notes == ("node1/xrdu0-xrdu1 is broken; 8 ranks do not use it",)
    assert plan.terms == plan_collective(Op.ALLREDUCE, make_machine("2xSN30-8"), 8, 10**6).terms


def test_ranks_that_no_link_reaches_are_refused() -> None:
    ports = [f"node1.port{n}" for n in range(8)]
    with pytest.raises(InvalidArgument, match="all 8 ports of that node are broken"):
        plan_collective(Op.ALLREDUCE, break_links(make_machine("2xSN30-8"), ports), 16, 10**6)
    alone = break_links(make_machine("1xSN30-8"), ["xrdu0/rdu0-rdu1"])
    with pytest.raises(InvalidArgument, match="cannot avoid xrdu0/rdu0-rdu1"):
        plan_collective(Op.ALLREDUCE, alone, 2, 10**6)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("64xSN30", "Did you mean 'SN30-8'"), ("0xSN30-8", "expected at least one of each"),
        ("rack:4xSN30-8", "unknown topology"), ("none.yaml", "cannot be read"), ("", "unknown topology"),
    ],
)  # fmt: skip
def test_a_topology_that_nobody_knows_is_refused(name: str, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        make_machine(name)


@pytest.mark.parametrize(
    "name", ["node0", "node9.port0", "node0/xrdu1-xrdu1", "node0/xrdu0-rdu1", "xrdu0-xrdu1", "node0/xrdu0.port0", "x-y"]
)
def test_a_link_that_the_machine_does_not_have_is_refused_with_examples(name: str) -> None:
    with pytest.raises(InvalidArgument, match=r"node0\.port0, node0/xrdu0-xrdu1, node0/xrdu0/rdu0-rdu1"):
        break_links(make_machine("4xSN30-8"), [name])


def test_ranks_of_half_an_rdu_share_it() -> None:
    machine = make_machine("1xSN30-8", tiles=4)
    assert machine.ranks == 16
    with pytest.raises(InvalidArgument, match="expected tiles that divide 8"):
        make_machine("1xSN30-8", tiles=3)


def test_a_file_replaces_single_figures(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("platform: SN30-8\nnodes: 4\nlinks:\n  node: {latency_us: 1.5, ports: 2}\nadd_gb_s: 100\n")
    machine, usual = make_machine(str(file)), make_machine("4xSN30-8")
    node = machine.levels[3]
    assert (node.latency_s, node.ports, node.bandwidth) == (1.5e-6, 2, usual.levels[3].bandwidth)
    assert machine.levels[:3] == usual.levels[:3] and machine.add_bandwidth == 100e9
    assert str(file) in machine.figures and machine.figures.startswith("assumed")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nodes: 4", "names no platform"),
        ("platform: SN30-8\nnode: 4", "Did you mean 'nodes'"),
        ("platform: SN30-8\nnodes: 1.5", "expected a whole number"),
        ("platform: SN30-8\nlinks: {node: {latency: 1}}", "expected gb_s, latency_us, ports, wiring"),
        ("platform: SN30-8\nlinks: {node: {gb_s: 0}}", "expected a number above 0"),
        ("platform: SN30-8\nlinks: {node: {gb_s: .inf}}", "expected a number above 0"),
        ("platform: SN30-8\nlinks: {node: {wiring: torus}}", "expected mesh or switch"),
        ("platform: SN30-8\nlinks: {pod: {gb_s: 1}}", "expected node, rack, rdu, tile, xrdu"),
        ("platform: [", "not valid YAML"),
    ],
)
def test_a_file_that_says_something_else_is_refused_with_what_was_expected(
    tmp_path: Path, text: str, words: str
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(InvalidArgument, match=words):
        make_machine(str(file))


def test_an_algorithm_that_does_not_fit_is_refused_with_its_reason() -> None:
    with pytest.raises(InvalidArgument, match="leave a unit of the outermost level partly empty"):
        plan_collective(Op.ALLREDUCE, make_machine("2xSN30-8"), 12, 10**6, CollectiveAlgorithm.HIERARCHICAL_SHARDED)


def test_a_goal_trace_pairs_each_send_with_a_receive() -> None:
    text = goal_trace(CollectiveAlgorithm.RING, Op.ALLREDUCE, make_machine("1xSN30-8"), 4, 4000, most=1000)
    lines = text.splitlines()
    assert lines[0] == "num_ranks 4"
    sends = [line for line in lines if ": send " in line]
    assert len(sends) == len([line for line in lines if ": recv " in line]) == 4 * 6
    assert all(" 1000b " in line for line in sends)
    defined: set[str] = set()
    for line in lines:
        if " requires " in line:
            assert {word for word in line.split() if word != "requires"} <= defined
        elif ":" in line:
            defined.add(line.partition(":")[0])
    with pytest.raises(InvalidArgument, match="expected at most 1000"):
        goal_trace(CollectiveAlgorithm.RING, Op.ALLREDUCE, make_machine("8xSN30-8"), 64, 4000, most=1000)


def test_the_command_prints_choice_reason_and_crossovers(tmp_path: Path) -> None:
    words = [
        "plan",
        "--ranks",
        "16",
        "--topology",
        "2xSN30-8",
        "--bytes",
        "25M",
        "--trace-goal",
        str(tmp_path / "a.goal"),
    ]
    shown = CliRunner().invoke(collective, words)
    assert shown.exit_code == 0, shown.output
    for part in ("<- chosen", "(projected)", "Fastest by size", "assumed"):
        assert part in shown.output
    assert (tmp_path / "a.goal").read_text().startswith("num_ranks 16\n")


def test_the_command_prints_json() -> None:
    words = ["plan", "--ranks", "16", "--topology", "2xSN30-8", "--bytes", "25Mi", "--op", "allgather", "--json"]
    value = json.loads(CliRunner().invoke(collective, words).stdout)
    assert value["bytes"] == 25 * 2**20 and value["op"] == "allgather"
    chosen = next(c for c in value["candidates"] if c["algorithm"] == value["chosen"])
    assert chosen["projected_s"] == value["projected_s"] > 0
    assert {level["name"] for level in value["links"]} == {"rdu", "xrdu", "node"}


@pytest.mark.parametrize("text", ["0", "-1", "1T", "25 M", "1e9", "9999Gi", "nan"])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    shown = CliRunner().invoke(collective, ["plan", "--ranks", "2", "--topology", "1xSN30-8", "--bytes", text])
    assert shown.exit_code == 2 and "expected 1 to 1024Gi" in shown.output
