"""Run of recipes: each step is a verb in a child process, with an output folder that later runs reuse.

A finished step with an unchanged request is not run again. A stopped step resumes if its verb can, as training does.
"""

import asyncio
import json
import signal
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rdukit import __version__
from rdukit.errors import Cancelled, Conflict, RdukitError, error_from_body
from rdukit.files.atomic import remove_tree, sha256_of, write_json_atomic
from rdukit.files.locks import sole_lock
from rdukit.settings import resolve
from rdukit_modelbox.artifacts.mounts import Exchange
from rdukit_modelbox.contract.allowed_values import ParameterValue
from rdukit_modelbox.contract.box import Box, find_box_file, load_box
from rdukit_modelbox.operations.supervisor import ChildLimits, ChildOutcome, Listener, run_child
from rdukit_modelbox.recipes.plan import RecipeStep, check_steps, plan_recipes, shorten
from rdukit_modelbox.recipes.recipe import Kind, Recipes, load_recipes
from rdukit_modelbox.settings import CANCEL_GRACE_S, STALL_S

STEP_FILE: Final = "step.json"
#: Figures of infer and evaluate that are not about the model.
_NOT_ABOUT_MODEL: Final = frozenset(
    {"samples", "checkpoint_step", "host_seconds", "emulated_seconds", "emulated_cycles", "tokens", "tokens_per_s"}
)


@dataclass(frozen=True, slots=True)
class StepResult:
    """Results of a step: the figures of its verb, and its outputs by slot."""

    figures: Mapping[str, Any]
    outputs: Mapping[str, str]
    seconds: float


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps of a box's kinds with all their parameters, and the boxes that they name."""

    box: str
    kinds: tuple[Kind, ...]
    steps: tuple[RecipeStep, ...]
    boxes: Mapping[str, Box]
    files: Mapping[str, Path]
    parameters: Mapping[str, Mapping[str, ParameterValue]]


def prepare(box: str, kinds: Collection[Kind], *, is_quick: bool = False) -> Plan:
    """Plan recipes of ``box``, a name, a ``modelbox.yaml`` or its folder; all available ones without ``kinds``.

    Raises:
        NotFound, InvalidArgument: no such box or recipe; a parameter is not valid.
    """
    known: dict[str, Recipes] = {}

    def find(name: str) -> Recipes:
        return known.setdefault(name, load_recipes(name))

    chosen = tuple(kinds) or tuple(kind for kind, one in find(box).items() if one.unavailable is None)
    steps = plan_recipes(box, chosen, find)
    files = {name: find_box_file(name) for name in {step.box for step in steps}}
    boxes = {name: load_box(file) for name, file in files.items()}
    if is_quick:
        steps = shorten(steps, boxes)
    return Plan(box, chosen, steps, boxes, files, check_steps(steps, boxes))


def run_plan(plan: Plan, folder: Path, begin: Callable[[RecipeStep], Listener]) -> dict[str, StepResult]:
    """Run the steps below ``folder``. SIGINT and SIGTERM stop the running one, which may leave a checkpoint.

    Args:
        begin: called before each step that runs; returns the listener for its child's messages.
    Returns:
        Result of each step, by name.
    Raises:
        Conflict: another run uses the folder.
        Cancelled: a signal came.
        RdukitError: the error of a failed step.
    """
    with sole_lock(folder / ".lock") as is_ours:
        if not is_ours:
            raise Conflict(f"another recipe run uses {folder}; wait for it, or choose another with --folder")
        return asyncio.run(_run(plan, folder.resolve(), begin))


def summarise(plan: Plan, kind: Kind, results: Mapping[str, StepResult]) -> dict[str, Any]:
    """Return a recipe's results, with the keys of ``recipes.yaml`` (pure)."""
    ended = results.get(f"{kind}-evaluate") or results[f"{kind}-infer"]
    trained = results.get(f"{kind}-train")
    summary: dict[str, Any] = {"box": plan.box, "kind": str(kind), "reached": figures_of(ended)}
    if f"{kind}-before" in results:
        summary["before"] = figures_of(results[f"{kind}-before"])
    if trained is not None:
        summary["seconds"] = float(trained.figures["train_seconds"])
        summary["trained_parameters"] = trained.figures["trained_parameters"]
    else:
        summary["reached"] |= rates_of(ended)
        summary["seconds"] = ended.seconds
    outputs = dict(ended.outputs) | ({} if trained is None else {"checkpoint": trained.outputs["checkpoint"]})
    return {**summary, "outputs": outputs}


def figures_of(result: StepResult) -> dict[str, float]:
    """Return a step's figures of quality; the loss only if there is no other (pure)."""
    named = {
        name: value
        for name, value in result.figures.items()
        if isinstance(value, int | float) and name not in _NOT_ABOUT_MODEL
    }
    others = {name: value for name, value in named.items() if name not in {"loss", "held_out_loss"}}
    return others or named


def rates_of(result: StepResult) -> dict[str, float]:
    """Return a step's speed on this machine: samples per second, or tokens (pure)."""
    if "tokens_per_s" in result.figures:
        return {"tokens_per_s": result.figures["tokens_per_s"]}
    seconds = float(result.figures.get("host_seconds") or 0)
    return {"samples_per_s": result.figures["samples"] / seconds} if seconds else {}


async def _run(plan: Plan, folder: Path, begin: Callable[[RecipeStep], Listener]) -> dict[str, StepResult]:
    cancel, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, cancel.set)
    done: dict[str, StepResult] = {}
    digests: dict[str, str] = {}
    for step in plan.steps:
        asked = {
            "version": __version__, "box": plan.files[step.box].read_text(encoding="utf-8"), "verb": str(step.verb),
            "parameters": dict(plan.parameters[step.name]),
            "inputs": {slot: digests[_source(text)[0]] for slot, text in step.inputs.items()},
        }  # fmt: skip
        digests[step.name] = digest = sha256_of(json.dumps(asked, sort_keys=True).encode())
        place = folder / step.name
        done[step.name] = _find_ended(place, digest) or await _run_step(
            plan, step, place, digest, done, begin(step), cancel
        )
    return done


async def _run_step(
    plan: Plan, step: RecipeStep, place: Path, digest: str, done: Mapping[str, StepResult], listener: Listener,
    cancel: asyncio.Event,
) -> StepResult:  # fmt: skip
    if place.exists() and _read_note(place).get("digest") != digest:
        remove_tree(place)
    place.mkdir(parents=True, exist_ok=True)
    write_json_atomic(place / STEP_FILE, {"digest": digest})
    inputs = {slot: done[name].outputs[output] for slot, (name, output) in _sources(step).items()}
    request = {
        "kind": "verb", "verb": str(step.verb), "box_file": str(plan.files[step.box]),
        "parameters": dict(plan.parameters[step.name]), "inputs": inputs, "output": str(place),
        "exchange": asdict(Exchange(roots=(str(place.parent),))),
    }  # fmt: skip
    began = time.monotonic()
    limits = ChildLimits(resolve(CANCEL_GRACE_S), stall_s=resolve(STALL_S))
    outcome = await run_child(request, place / "log.txt", listener, cancel, limits)
    figures, outputs = _succeeded(step, outcome)
    result = StepResult(figures, outputs, time.monotonic() - began)
    write_json_atomic(place / STEP_FILE, {"digest": digest, **asdict(result)})
    return result


def _succeeded(step: RecipeStep, outcome: ChildOutcome) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    if outcome.succeeded is not None:
        return outcome.succeeded
    if outcome.failed is None:
        raise Cancelled(f"stopped during {step.name}; the same command continues there")
    failed = outcome.failed
    error = {"code": failed.code, "message": f"{step.name}: {failed.message}", "detail": dict(failed.detail)}
    raise error_from_body({"error": error}, RdukitError)


def _find_ended(place: Path, digest: str) -> StepResult | None:
    """Return the result of a step that ended there with the same request, if its outputs still exist."""
    note = _read_note(place)
    if note.get("digest") != digest or "outputs" not in note:
        return None
    if not all(Path(path).exists() for path in note["outputs"].values()):
        return None
    return StepResult(note["figures"], note["outputs"], note["seconds"])


def _read_note(place: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        note = json.loads((place / STEP_FILE).read_text())
        if isinstance(note, dict):
            return note
    return {}


def _sources(step: RecipeStep) -> dict[str, tuple[str, str]]:
    return {slot: _source(text) for slot, text in step.inputs.items()}


def _source(text: str) -> tuple[str, str]:
    name, _, slot = text.removeprefix("@").partition(".")
    return name, slot
