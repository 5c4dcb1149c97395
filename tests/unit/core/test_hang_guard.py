"""A health check ends a part that hangs after it was healthy, and no other."""

from pathlib import Path
from typing import Any

import yaml

from rdukit.system.hang_guard import CHECK_S, CheckOutcome, GuardState, ProcessorTime, main, next_guard_state
from support import shows

pytestmark = shows("containers", "health")

COMPOSE: dict[str, Any] = yaml.safe_load((Path(__file__).parents[3] / "docker-compose.yml").read_text())
HEALTHY, UNHEALTHY, HUNG = CheckOutcome.HEALTHY, CheckOutcome.UNHEALTHY, CheckOutcome.HUNG


def run(*outcomes: CheckOutcome, patience_s: float = 10) -> list[bool]:
    """Whether each of the checks, every six seconds with four of waiting, ends the part."""
    state, ends = GuardState(), []
    for number, outcome in enumerate(outcomes):
        state, is_over = next_guard_state(state, outcome, number * 6.0, number * 6.0 + 4, patience_s)
        ends.append(is_over)
    return ends


def test_a_part_that_was_healthy_is_ended_when_it_hangs_for_long_enough() -> None:
    assert run(HEALTHY, HUNG, HUNG) == [False, False, True]
    assert run(HEALTHY, HUNG, HUNG, HUNG, patience_s=15) == [False, False, False, True]


def test_a_part_that_answers_in_between_is_left_alone() -> None:
    assert not any(run(HEALTHY, HUNG, HEALTHY, HUNG, UNHEALTHY, HUNG))


def test_a_part_that_is_not_ready_or_was_never_up_is_left_alone() -> None:
    assert not any(run(HEALTHY, *[UNHEALTHY] * 20))
    assert not any(run(*[HUNG] * 20))


def test_patience_grows_with_the_machines_load() -> None:
    slowdown = ProcessorTime(ran=100, waited=900).slowdown
    assert slowdown == 10
    assert not any(run(HEALTHY, *[HUNG] * 10, patience_s=10 * slowdown))
    assert run(HEALTHY, *[HUNG] * 20, patience_s=10 * slowdown)[-1]
    assert ProcessorTime().slowdown == 1, "where the system does not count"


def test_the_command_line_needs_a_patience_and_a_check() -> None:
    assert main([]) == main(["5"]) == main(["soon", "true"]) == 2


def test_each_part_of_ours_in_compose_is_guarded_and_a_hung_node_daemon_is_unhealthy_within_20_seconds() -> None:
    for name, service in COMPOSE["services"].items():
        check = service["healthcheck"]
        if str(service["image"]).startswith("rdukit/"):
            assert "rdukit.system.hang_guard" in check["test"], name
            assert service["restart"] == "unless-stopped", name
        if name.startswith("snd"):
            once = int(str(check["interval"]).removesuffix("s")) + CHECK_S + 2
            assert int(check["retries"]) * once <= 20, name
