"""A scenario is the same steps for the same seed, and what is wrong in it is said with its line."""

import contextlib
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdukit.errors import InvalidArgument
from rdukit.hardware import find_node
from rdukit_node.faults import scenario as scenario_module
from rdukit_node.faults.machine import FaultMachine
from rdukit_node.faults.model import nobody
from rdukit_node.faults.scenario import read_scenario
from support import shows

pytestmark = shows("faults", "tools")

NODE = find_node("SN30-8")
TEXT = """
seed: 7
steps:
  - at: 2s
    class: tile-hang
    component: /NODE/XRDU_*/RDU_0/TILE_?
    data: {resets_that_fail: 1}
  - {at: 5s, every: 500ms, for: 10s, class: ddr-correctable, count: 3}
  - {at: 20s, rate: 1000, for: 2s, class: pcie-correctable, component: /NODE/XRDU_0}
  - {at: 30s, class: fan, pick: all}
  - {at: 40s, clear: /NODE}
  - {at: 1m, repair: "/XRDU_?"}
"""


def test_the_same_seed_gives_the_same_steps_and_another_one_others() -> None:
    steps = read_scenario(TEXT, NODE)
    assert steps == read_scenario(TEXT, NODE) == read_scenario(TEXT, NODE, 7) != read_scenario(TEXT, NODE, 8)
    assert [step.at_s for step in steps] == sorted(step.at_s for step in steps)
    events = [event for step in steps for event in step.injections]
    assert sum(event.count for event in events if event.class_name == "ddr-correctable") == 60
    assert sum(event.count for event in events if event.class_name == "pcie-correctable") == 2000
    assert sum(event.class_name == "fan" for event in events) == 4
    assert all("/RDU_0/TILE_" in (event.component or "") for event in events if event.class_name == "tile-hang")
    assert steps[-1].components == ("/NODE/XRDU_0", "/NODE/XRDU_1", "/NODE/XRDU_2", "/NODE/XRDU_3")
    assert steps[-1].at_s == 60.0


def test_its_steps_run_on_a_fault_machine() -> None:
    numbers = itertools.count()
    machine = FaultMachine(NODE, lambda: f"uuid-{next(numbers)}")
    faults = []
    for step in read_scenario(TEXT, NODE):
        outcome = step.run(machine, nobody, int(step.at_s * 1e9))
        machine.validate()
        faults.append(len(machine.active_faults()))
    assert faults[0] == 1, "the tile's reset fails once"
    assert max(faults) > 1 and machine.is_healthy
    assert outcome.notices[-1].kind == "repair"


def test_the_example_of_the_manual_can_be_read() -> None:
    text = (scenario_module.__doc__ or "").split("```")[1].removeprefix("yaml")
    assert sum(event.count for step in read_scenario(text, NODE) for event in step.injections) == 100_061


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a mapping; expected keys seed and steps"),
        ("seed: 1\ncolour: red", "line 2: the scenario has no key 'colour'; expected seed, steps"),
        ("steps: 3", "line 1: steps is missing or not a list"),
        ("steps:\n- {at: soon, class: fan}", "line 2: at is 'soon'; expected seconds, or"),
        ("steps:\n- {at: 1}", "line 2: a step has nothing to do; expected one of class, clear"),
        ("steps:\n- {class: fan, repair: /NODE}", "line 2: a step has class and repair"),
        ("steps:\n- class: fan\n  cont: 3", "line 3: a step with class has no key 'cont'; expected class, at, every"),
        ("steps:\n- {class: fun}", "line 2: unknown fault class 'fun'; expected ddr-correctable"),
        ("steps:\n- {class: fan, component: /NODE/XRDU_7}", "line 2: component is '/NODE/XRDU_7'; expected a path or"),
        ("steps:\n- {class: fan, count: 0}", "line 2: count is 0; expected a whole number from 1"),
        ("steps:\n- {class: fan, every: 1s}", "need for"),
        ("steps:\n- {class: fan, for: 1s}", "only with every or rate"),
        ("steps:\n- {class: fan, rate: 5, every: 1s, for: 1s}", "without every and count"),
        ("steps:\n- {class: fan, every: 1us, for: 1s}", "line 2: every is '1us'"),
        ("steps:\n- {repair: /NODE, rate: 5, for: 1s}", "only with class"),
        ("steps:\n- {class: fan, pick: most}", "expected one, all"),
        ("steps:\n- {class: fan, data: [1]}", "expected a mapping"),
        ("steps:\n- {class: fan, data: {persists: 3}}", "line 2: data.persists of fan is 3"),
        ("steps:\n- {class: fan, rate: 1000000, for: 20m}", "expected 10000000 events"),
        ("steps:\n- &a {class: fan}\n- *a", "line 3: an alias"),
        ("steps: [[", "is not YAML"),
        ("steps:\n- {at: 1, at: 2, class: fan}", "line 2: at is repeated"),
        ("[" * 100_000, "nested too deeply"),
        ("x" * 300_000, "expected 262144 at most"),
        ("steps:\n- {reset: !!python/object:os.system x}", "not YAML"),
    ],
)
def test_what_is_wrong_is_said_with_line_and_key(text: str, said: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        read_scenario(text, NODE)
    assert said in caught.value.message


@given(st.text(alphabet="stepclafn:-{}[]&*!? \n'\"0123./_", max_size=80))
def test_no_text_does_more_than_be_refused(noise: str) -> None:
    with contextlib.suppress(InvalidArgument):
        read_scenario("steps:\n- " + noise, NODE)
