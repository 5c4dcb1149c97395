"""Which trials of a sweep are next, which are hopeless, and when it is over."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from rdukit.errors import IllegalValue, InvalidArgument, Unavailable
from rdukit_platform.catalog.model import BoxDescription, BoxVerb, VerbMetric, VerbParameter
from rdukit_platform.cli.sweep import make_body, read_space
from rdukit_platform.jobs.states import JobState
from rdukit_platform.sweeps import suggest
from rdukit_platform.sweeps.advance import CURVE_POINTS, objective_of, thin_out
from rdukit_platform.sweeps.decide import (
    check_space,
    find_best,
    find_end,
    find_stops,
    next_trials,
    probes,
    random_point,
)
from rdukit_platform.sweeps.model import EarlyStopping, Goal, Range, SweepRequest, SweepState, Trial
from rdukit_platform.sweeps.splits import with_split
from support import shows

pytestmark = shows("sweeps")

DONE, RUNNING, FAILED = JobState.SUCCEEDED, JobState.RUNNING, JobState.FAILED
LR = {"lr": {"low": 0.001, "high": 1.0, "log": True}, "steps": {"low": 1, "high": 5, "integer": True}}


def sweep(**changes: object) -> SweepRequest:
    body: dict[str, object] = {
        "job": {"box": "counter", "verb": "train"},
        "space": {"lr": {"values": [0.1, 0.01]}, "mode": {"values": ["o0", "o1", "o3"]}},
        "objective": {"metric": "loss"},
        "max_parallel": 4,
    }
    return SweepRequest.model_validate(body | changes)


def trial(
    number: int, state: JobState = DONE, value: float | None = None, *curve: float, **parameters: object
) -> Trial:
    points = [(float(step), loss) for step, loss in enumerate(curve, start=1)]
    return Trial(number, parameters, state, value, points)


def run_all(asked: SweepRequest, value_of: Any) -> list[Trial]:
    """Let every trial succeed at once, one after the other."""
    trials: list[Trial] = []
    while found := next_trials(asked, trials):
        number = len(trials)
        trials.append(Trial(number, found[0], DONE, value_of(found[0])))
    return trials


def test_a_grid_is_every_combination_once_and_no_more_at_once_than_asked() -> None:
    first = next_trials(sweep(), [])
    assert first == [{"lr": 0.1, "mode": "o0"}, {"lr": 0.1, "mode": "o1"}, {"lr": 0.1, "mode": "o3"},
                     {"lr": 0.01, "mode": "o0"}]  # fmt: skip
    trials = run_all(sweep(), lambda point: point["lr"])
    assert len({str(one.parameters) for one in trials}) == 6
    assert find_end(sweep(), trials) == (SweepState.SUCCEEDED, "all 6 trials have ended")
    best = find_best(Goal.MINIMIZE, trials)
    assert best is not None and best.parameters == {"lr": 0.01, "mode": "o0"}


def test_a_trial_begins_where_one_has_ended() -> None:
    trials = [trial(0, RUNNING), trial(1, DONE, 0.5), trial(2, JobState.QUEUED), trial(3, RUNNING)]
    assert next_trials(sweep(), trials) == [{"lr": 0.01, "mode": "o1"}]
    assert next_trials(sweep(max_trials=4), trials) == []
    assert find_end(sweep(max_trials=4), trials) is None


@settings(max_examples=60)
@given(st.integers(0, 1 << 30), st.integers(0, 999))
def test_a_random_trial_is_within_its_space_and_the_same_again(seed: int, number: int) -> None:
    asked = sweep(algorithm="random", space={**LR, "mode": {"values": ["o0", 1, None]}})
    point = random_point(asked.space, seed, number)
    assert 0.001 <= point["lr"] <= 1.0  # type: ignore[operator]
    assert point["steps"] in {1, 2, 3, 4, 5} and isinstance(point["steps"], int)
    assert point["mode"] in {"o0", 1, None}
    assert random_point(asked.space, seed, number) == point


def test_random_trials_do_not_depend_on_how_many_are_asked_for_at_once() -> None:
    one, four = sweep(algorithm="random", space=LR, max_parallel=1), sweep(algorithm="random", space=LR)
    trials = run_all(one, lambda point: 1.0)
    assert len(trials) == 20
    assert next_trials(four, []) == [dict(each.parameters) for each in trials[:4]]
    assert run_all(sweep(algorithm="random", space=LR, seed=1), lambda _: 1.0) != trials


def test_optuna_comes_closer_to_the_best_than_chance_and_chooses_the_same_again() -> None:
    asked = sweep(algorithm="optuna", space={"x": {"low": -10.0, "high": 10.0}}, max_trials=40, seed=3)
    trials = run_all(asked, lambda point: (point["x"] - 2) ** 2)
    late = sorted(each.value or 0.0 for each in trials[20:])
    assert late[10] < 9.0, "half of the later trials are within 3 of the best; by chance three tenths are"
    assert next_trials(asked, trials[:30])[0] == trials[30].parameters


def test_optuna_is_told_of_open_failed_and_stopped_trials() -> None:
    rule = {"metric": "loss"}
    asked = sweep(algorithm="optuna", space=LR, early_stopping=rule, max_parallel=8)
    told = [
        trial(0, RUNNING, lr=0.1, steps=2), trial(1, FAILED, lr=0.2, steps=1), trial(3, DONE, 0.25, lr=0.01, steps=3),
        trial(2, JobState.CANCELLED, None, 3.0, 2.5, lr=0.5, steps=5),
    ]  # fmt: skip
    found = next_trials(asked, told)
    assert len(found) == 7
    assert len({str(point) for point in found}) == 7


def test_without_optuna_it_is_said_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suggest.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Unavailable, match=r"pip install 'rdukit\[optuna\]'"):
        suggest.check_optuna()


def test_a_trial_that_is_worse_than_the_median_at_its_step_is_ended_and_it_is_said_why() -> None:
    done = [trial(k, DONE, end, 1.0, end) for k, end in enumerate([0.1, 0.3, 0.5])]
    rule = EarlyStopping(min_trials=3)
    hopeless, fine = trial(3, RUNNING, None, 0.9, 0.8), trial(4, RUNNING, None, 1.5, 0.2)
    stops = find_stops(rule, [*done, hopeless, fine])
    assert [(stop.number, stop.why) for stop in stops] == [
        (3, "loss was 0.8 at best by step 2, above 0.65, the median of 3 trials")
    ]
    assert find_stops(EarlyStopping(min_trials=4), [*done, hopeless]) == []
    assert find_stops(EarlyStopping(min_steps=3), [*done, hopeless]) == []
    assert find_stops(rule, [*done, trial(3, JobState.QUEUED, None, 9.0)]) == []


def test_of_a_metric_that_grows_the_low_ones_are_hopeless() -> None:
    done = [trial(k, DONE, end, end) for k, end in enumerate([0.7, 0.8, 0.9])]
    rule = EarlyStopping(metric="accuracy", goal=Goal.MAXIMIZE)
    stops = find_stops(rule, [*done, trial(3, RUNNING, None, 0.5), trial(4, RUNNING, None, 0.85)])
    assert [stop.number for stop in stops] == [3]
    assert "accuracy was 0.5 at best by step 1, below 0.8" in stops[0].why


def test_a_sweep_fails_where_nothing_succeeds() -> None:
    failed = [trial(k, FAILED) for k in range(3)]
    end = find_end(sweep(), failed)
    assert end is not None and end[0] is SweepState.FAILED and "none has succeeded" in end[1]
    assert find_end(sweep(), [*failed, trial(3, DONE, 1.0)]) is None
    told_nothing = find_end(sweep(max_trials=2), [trial(0, DONE), trial(1, JobState.CANCELLED)])
    assert told_nothing is not None and "reported 'loss'" in told_nothing[1]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"space": LR}, "parameter 'lr' of a grid is a range"),
        ({"job": {"box": "b", "verb": "train", "parameters": {"lr": 1}}}, "'lr' is in space and in job.parameters"),
        ({"job": {"box": "b", "verb": "train", "idempotency_key": "k"}}, "use the sweep's idempotency_key"),
        ({"algorithm": "optuna", "space": {"a": {"values": [[1], [2]]}}}, "plain values"),
        ({"space": {k: {"values": list(range(40))} for k in "ab"}}, "1600 points; expected 1000"),
    ],
)
def test_a_space_that_cannot_be_searched_is_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(IllegalValue, match=said):
        check_space(sweep(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"space": {}}, {"space": {"lr": {"values": []}}}, {"space": {"lr": {"low": 2, "high": 1}}},
        {"space": {"lr": {"low": 0, "high": 1, "log": True}}},
        {"space": {"lr": {"low": 0.5, "high": 2, "integer": True}}},
        {"algorithm": "genetic"}, {"max_parallel": 65}, {"max_trials": 0}, {"objective": {"metric": "x", "goal": "up"}},
        {"seed": -1}, {"space": {"lr": {"values": [1], "low": 0}}},
    ],
)  # fmt: skip
def test_a_body_that_is_no_sweep_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        sweep(**changes)


def test_each_value_and_end_is_probed_once() -> None:
    space = {"a": Range(low=1, high=2), **sweep(space={"b": {"values": [1, 2]}}).space}
    assert [(name, point[name]) for name, point in probes(space)] == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]


def test_the_objective_is_of_the_result_or_else_of_the_last_progress() -> None:
    assert objective_of({"accuracy": 0.5}, {"accuracy": 0.25}, "accuracy") == 0.5
    assert objective_of({}, {"loss": 0.25}, "loss") == 0.25
    assert objective_of({"loss": "NaN"}, {"loss": 0.25}, "loss") is None
    assert objective_of(None, None, "loss") is None


def test_a_kept_curve_has_its_ends_and_not_too_many_points() -> None:
    curve = [(float(step), 1.0 / step) for step in range(1, 5001)]
    kept = thin_out(curve)
    assert len(kept) <= CURVE_POINTS
    assert (kept[0], kept[-1]) == ([1.0, 1.0], [5000.0, 1 / 5000])
    assert thin_out([]) == []


@pytest.mark.parametrize(
    ("text", "space"),
    [
        ("0.1,0.01", {"values": [0.1, 0.01]}), ("o0,o1", {"values": ["o0", "o1"]}), ("8", {"values": [8]}),
        ("true,false", {"values": [True, False]}),
        ("1e-4:0.1:log", {"low": 1e-4, "high": 0.1, "log": True, "integer": False}),
        ("1:8:int", {"low": 1, "high": 8, "log": False, "integer": True}), ("a:b", {"values": ["a:b"]}),
    ],
)  # fmt: skip
def test_spaces_are_read_from_words(text: str, space: dict[str, object]) -> None:
    assert read_space("lr", text) == space


def test_the_commands_options_make_a_body() -> None:
    options: dict[str, Any] = dict.fromkeys(
        ["minimize", "maximize", "max_trials", "max_parallel", "seed", "stop_early", "stop_after", "stop_trials",
         "name", "key", "tiles"]
    ) | {"box": "b", "verb": "train", "settings": (), "inputs": (), "grid": (), "random": (), "optuna": (),
         "labels": ("a=b",), "priority": 0, "run_limit": 90.0}  # fmt: skip
    given = options | {"random": ("lr=0.1:1:log",), "maximize": "accuracy", "stop_early": "loss", "seed": 0}
    body = make_body(given)
    assert (body["algorithm"], body["objective"]) == ("random", {"metric": "accuracy", "goal": "maximize"})
    assert (body["early_stopping"], body["seed"]) == ({"metric": "loss"}, 0)
    job = SweepRequest.model_validate(body).job
    assert (job.labels, job.priority, job.run_limit_s, job.tiles) == ({"a": "b"}, 0, 90.0, None)
    for wrong in ({"box": None}, {"random": ()}, {"grid": ("a=1",)}, {"minimize": "loss"}):
        with pytest.raises(InvalidArgument):
            make_body(given | wrong)
    with pytest.raises(InvalidArgument, match="'sqrt'"):
        read_space("lr", "1:2:sqrt")


def trained_box(*metrics: str, **parameters: object) -> tuple[BoxDescription, BoxVerb]:
    known = tuple(
        VerbParameter(name, "int", default, "", "", {"maximum": 5000}) for name, default in parameters.items()
    )
    verb = BoxVerb("train", known, (), (), tuple(VerbMetric(name, better="lower") for name in metrics))
    return BoxDescription("mlp", "", (verb,), {}), verb


FIGURES = ("loss", "held_out_loss", "accuracy", "mae", "validation_loss", "validation_accuracy")


@pytest.mark.parametrize(
    ("metric", "given", "found"),
    [
        ("held_out_loss", {}, ("validation_loss", "dev", 5000)),
        ("accuracy", {}, ("validation_accuracy", "dev", 5000)),
        ("validation_accuracy", {}, ("validation_accuracy", "dev", 5000)),
        ("accuracy", {"evaluate_every": 50}, ("validation_accuracy", "dev", 50)),
        ("accuracy", {"validation_share": 0}, ("accuracy", "test", None)),
        ("loss", {}, ("loss", None, None)),
        ("mae", {}, ("mae", None, None)),
    ],
)
def test_a_sweep_asks_for_the_dev_split_that_it_compares_on(
    metric: str, given: dict[str, object], found: tuple[object, ...]
) -> None:
    asked = sweep(objective={"metric": metric}, job={"box": "mlp", "verb": "train", "parameters": given})
    made = with_split(asked, *trained_box(*FIGURES, evaluate_every=0, validation_share=0.1))
    assert (made.objective.metric, made.objective.split, made.job.parameters.get("evaluate_every")) == found


def test_a_sweep_compares_on_the_test_split_only_on_request() -> None:
    box = trained_box(*FIGURES, evaluate_every=0)
    made = with_split(sweep(objective={"metric": "accuracy", "split": "test"}), *box)
    assert (made.objective.metric, made.objective.split, made.job.parameters) == ("accuracy", "test", {})
    for objective, parameters, words in (
        ({"metric": "validation_loss", "split": "test"}, {}, "is a figure of the dev split; expected split dev"),
        ({"metric": "mae", "split": "dev"}, {}, "reports 'mae' on only one split; leave out split"),
        ({"metric": "accuracy"}, {"evaluate_every": 0}, "'validation_accuracy' needs evaluations, and evaluate_every"),
    ):
        job = {"box": "mlp", "verb": "train", "parameters": parameters}
        with pytest.raises(IllegalValue, match=words):
            with_split(sweep(objective=objective, job=job), *box)
    with pytest.raises(IllegalValue, match="evaluate_every is 0"):
        with_split(sweep(objective={"metric": "accuracy"}, space={"evaluate_every": {"values": [0, 5]}}), *box)
