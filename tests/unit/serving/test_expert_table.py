"""Experts in a budget of memory: who comes, who makes room, and that nobody waits for ever."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rdukit_serving.experts.table import EvictExpert, ExpertState, ExpertTable, LoadExpert
from rdukit_serving.experts.tiers import MemoryTiers, TierSizes
from support import shows

pytestmark = shows("bundles", "bundle-memory")

SIZES = {"a": (4, True), "b": (3, False), "c": (3, False), "d": (6, False), "e": (2, False)}
BUDGET = 10


def bring(table: ExpertTable, *names: str) -> None:
    """Bring experts into memory as far as there is room."""
    for name in names:
        table.want(name)
    settle(table)


def settle(table: ExpertTable) -> list[str]:
    """Do what the table decides until it decides nothing; return who was evicted."""
    evicted = []
    while decided := table.decide():
        for decision in decided:
            if isinstance(decision, LoadExpert):
                table.loaded(decision.name)
            else:
                evicted.append(decision.name)
                table.gone(decision.name)
    return evicted


def test_the_least_recently_used_makes_room_and_the_pinned_one_stays() -> None:
    table = ExpertTable(BUDGET, SIZES)
    bring(table, "a", "b", "c")
    table.begin("b")
    table.end("b")
    table.want("e")
    assert settle(table) == ["c"]
    assert [table.state(name) for name in "abe"] == [ExpertState.LIVE] * 3


def test_an_expert_with_texts_stays_until_they_end_and_takes_no_others() -> None:
    table = ExpertTable(BUDGET, SIZES)
    bring(table, "a", "b", "c")
    table.begin("b")
    table.begin("c")
    table.want("d")
    assert settle(table) == [] and table.state("d") is ExpertState.QUEUED
    assert not table.may_begin("b") and not table.may_begin("c")
    table.want("b")  # whoever asks meanwhile comes after
    table.end("b")
    assert settle(table) == ["b"]
    table.end("c")
    assert settle(table) == ["c", "d"] or table.state("d") is ExpertState.LIVE
    assert table.held_bytes <= BUDGET


def test_a_load_that_nobody_waits_for_is_taken_back() -> None:
    table = ExpertTable(BUDGET, SIZES)
    bring(table, "a", "d")
    table.begin("d")
    table.want("b")
    settle(table)
    assert table.state("b") is ExpertState.QUEUED
    table.forget("b")
    assert table.state("b") is ExpertState.OFFLINE


def test_a_lost_expert_comes_back_for_its_texts_whoever_stops_to_wait() -> None:
    table = ExpertTable(BUDGET, SIZES)
    bring(table, "b", "a")
    table.begin("b")
    for name in "ba":
        table.gone(name)  # their process died
        table.want(name)
    table.forget("b")  # who asked meanwhile has left
    table.forget("a")
    assert table.state("b") is table.state("a") is ExpertState.QUEUED
    table.leave("b")
    settle(table)
    assert table.state("b") is ExpertState.LIVE and not table.may_begin("b")
    table.end("b")
    assert settle(table) == ["b"]


@dataclass
class Promise:
    """An eviction or a load that is under way."""

    name: str
    is_load: bool


@dataclass
class Facts:
    """What the machine knows by itself."""

    waiting: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SIZES, 0))
    texts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SIZES, 0))
    under_way: list[Promise] = field(default_factory=list)


class TableMachine(RuleBasedStateMachine):
    """Texts come and end, callers leave, loads succeed, fail and are lost with all experts, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.table = ExpertTable(BUDGET, SIZES)
        self.facts = Facts()

    @rule(name=st.sampled_from(sorted(SIZES)))
    def come(self, name: str) -> None:
        if self.table.may_begin(name):
            self.table.begin(name)
            self.facts.texts[name] += 1
        else:
            self.facts.waiting[name] += 1
            self.table.want(name)
        self.step()

    @rule(name=st.sampled_from(sorted(SIZES)))
    def end(self, name: str) -> None:
        if self.facts.texts[name]:
            self.facts.texts[name] -= 1
            self.table.end(name)
            self.step()

    @rule(name=st.sampled_from(sorted(SIZES)))
    def go(self, name: str) -> None:
        if self.facts.waiting[name]:
            self.facts.waiting[name] -= 1
            if not self.facts.waiting[name]:
                self.table.forget(name)
            self.step()

    @rule()
    def lose(self) -> None:
        for name, (_, is_pinned) in SIZES.items():
            if self.table.state(name) is ExpertState.LIVE:
                self.table.gone(name)
                if self.facts.texts[name] or is_pinned:
                    self.table.want(name)
        self.step()

    @rule(name=st.sampled_from(sorted(SIZES)))
    def unload(self, name: str) -> None:
        if not self.facts.waiting[name]:
            self.table.leave(name)
            self.step()

    @rule(fails=st.booleans(), data=st.data())
    def finish(self, fails: bool, data: st.DataObject) -> None:
        if not self.facts.under_way:
            return
        promise = self.facts.under_way.pop(data.draw(st.integers(0, len(self.facts.under_way) - 1)))
        if promise.is_load and not fails:
            self.table.loaded(promise.name)
            for _ in range(self.facts.waiting[promise.name]):
                self.table.begin(promise.name)
                self.facts.texts[promise.name] += 1
        else:
            self.table.gone(promise.name)
            for _ in range(self.facts.texts[promise.name]):  # those that were made when their process died
                self.table.end(promise.name)
            self.facts.texts[promise.name] = 0
        if promise.is_load:
            self.facts.waiting[promise.name] = 0
            self.table.forget(promise.name)
        self.step()

    def step(self) -> None:
        for decision in self.table.decide():
            if isinstance(decision, EvictExpert):
                assert not self.facts.texts[decision.name]
            self.facts.under_way.append(Promise(decision.name, isinstance(decision, LoadExpert)))

    @invariant()
    def holds(self) -> None:
        self.table.validate()
        for name, texts in self.facts.texts.items():
            assert not texts or self.table.state(name) is not ExpertState.OFFLINE

    def teardown(self) -> None:
        """When texts end and what is under way succeeds, nobody waits any more."""
        for _ in range(200):
            for name in SIZES:
                self.end(name)
            while self.facts.under_way:
                promise = self.facts.under_way.pop(0)
                if promise.is_load:
                    self.table.loaded(promise.name)
                    self.facts.waiting[promise.name] = 0
                else:
                    self.table.gone(promise.name)
                self.step()
        assert not any(self.facts.waiting.values()), self.facts.waiting


TestTable = TableMachine.TestCase
TestTable.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


@given(st.lists(st.sampled_from(sorted(SIZES)), max_size=60), st.integers(6, 20))
def test_a_switch_costs_its_bytes_over_the_bandwidth_unless_the_expert_is_there(used: list[str], hbm: int) -> None:
    weights = {name: size for name, (size, _) in SIZES.items()}
    tiers = MemoryTiers(TierSizes(hbm, 100, 2.0, 0.5), weights, ["a"])
    for name in used:
        was_there, was_loaded = name in tiers.in_hbm, name in tiers.in_ddr
        switch = tiers.use(name)
        assert switch.switch_bytes == (0 if was_there else weights[name])
        assert switch.switch_s == switch.switch_bytes / 2.0
        assert switch.load_s == (0 if was_loaded else weights[name] / 0.5)
        assert sum(weights[each] for each in tiers.in_hbm) <= hbm
        assert tiers.in_hbm[-1] == name


def test_without_hbm_weights_run_in_ddr_and_pinned_and_busy_ones_stay() -> None:
    weights = {name: size for name, (size, _) in SIZES.items()}
    tiers = MemoryTiers(TierSizes(0, BUDGET, 2.0, 0.5), weights, ["a"])
    for name in "abc":
        assert tiers.use(name).switch_s == 0
    assert tiers.use("e", busy=["b"]).load_bytes == 2
    assert tiers.in_ddr == ("a", "b", "e") and not tiers.in_hbm
