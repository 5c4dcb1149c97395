"""Optuna's choice of the next trial, from the trials so far (pure; needs the extra ``optuna``).

Each call builds a new study, so the database has the only state.
"""

import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any

from rdukit.errors import Unavailable
from rdukit_platform.jobs.states import FINAL, JobState
from rdukit_platform.sweeps.model import Range, SweepRequest, Trial, Values


def check_optuna() -> None:
    """Refuse where Optuna is not installed.

    Raises:
        Unavailable: the message says how to install it.
    """
    if importlib.util.find_spec("optuna") is None:
        raise Unavailable(
            "the algorithm optuna needs the library Optuna next to gateway and scheduler, where it is missing; "
            "install it with: pip install 'rdukit[optuna]', or use the algorithm random"
        )


def suggest(sweep: SweepRequest, begun: Sequence[Trial], number: int) -> dict[str, object]:
    """Return the parameters that Optuna's TPE sampler suggests, given all trials so far.

    Open trials count as bad results (constant liar), so that concurrent trials differ.

    Raises:
        Unavailable: Optuna is not installed.
    """
    check_optuna()
    optuna: Any = importlib.import_module("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = optuna.samplers.TPESampler(seed=(sweep.seed * 1_000_003 + number) % (1 << 32), constant_liar=True)
    study = optuna.create_study(direction=str(sweep.objective.direction), sampler=sampler)
    spaces = {name: _distribution(optuna, each) for name, each in sweep.space.items()}
    for trial in begun:
        study.add_trial(_tell(optuna, sweep, trial, spaces))
    return dict(study.ask(spaces).params)


def _distribution(optuna: Any, each: Values | Range) -> Any:
    if isinstance(each, Values):
        return optuna.distributions.CategoricalDistribution(each.values)
    if each.integer:
        return optuna.distributions.IntDistribution(int(each.low), int(each.high), log=each.log)
    return optuna.distributions.FloatDistribution(each.low, each.high, log=each.log)


def _tell(optuna: Any, sweep: SweepRequest, trial: Trial, spaces: dict[str, Any]) -> Any:
    states = optuna.trial.TrialState
    # The early-stopping curve is usable only if its metric is the objective.
    rule = sweep.early_stopping
    is_same = rule is not None and (rule.metric, rule.direction) == (sweep.objective.metric, sweep.objective.direction)
    curve = {int(step): value for step, value in trial.curve} if is_same else {}
    if trial.state not in FINAL:
        state = states.RUNNING
    elif trial.value is not None:
        state = states.COMPLETE
    else:
        state = states.PRUNED if trial.state is JobState.CANCELLED and curve else states.FAIL
    return optuna.trial.create_trial(
        state=state,
        value=trial.value if state == states.COMPLETE else None,
        params=dict(trial.parameters),
        distributions=spaces,
        intermediate_values=curve if state == states.PRUNED else None,
    )
