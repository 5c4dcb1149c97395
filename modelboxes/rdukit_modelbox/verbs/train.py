"""Train: a PEF and a data set → checkpoints. An attempt that died is continued by asking for the same again."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from rdukit.errors import Conflict, InvalidArgument, RdukitError
from rdukit.files.atomic import write_atomic
from rdukit.pef.identity import require_same
from rdukit.telemetry.spans import span
from rdukit.units import plain
from rdukit_modelbox.contract.allowed_values import ParameterValue
from rdukit_modelbox.contract.box import Verb
from rdukit_modelbox.contract.models import entry_of, read_shape
from rdukit_modelbox.preprocessing.datasets import DEV
from rdukit_modelbox.tasks import task_of
from rdukit_modelbox.tasks.base import Scores, Task, TaskData, reported_split, watched_split, with_names
from rdukit_modelbox.tasks.program import ModelProgram
from rdukit_modelbox.training.checkpoints import (
    Checkpoint,
    Identity,
    TrainingTotals,
    has_checkpoint,
    load_checkpoint,
    with_rows_a_step,
)
from rdukit_modelbox.training.journal import TrainingJournal, draw_loss_curve, read_lines, write_curves
from rdukit_modelbox.training.members import Members
from rdukit_modelbox.training.options import TrainingOptions, options_from
from rdukit_modelbox.training.run import TrainingRun
from rdukit_modelbox.verbs.context import VerbContext, VerbResult
from rdukit_serving.device.parameters import check_checkpoint, load_parameters
from rdukit_serving.shape import TRAIN, Shape
from rdukit_zoo.registry import ModelEntry


def run_train(
    context: VerbContext, parameters: Mapping[str, ParameterValue], inputs: Mapping[str, Path], output: Path,
    model: tuple[Task, ModelEntry] | None = None,
) -> VerbResult:  # fmt: skip
    """Train by the order that the seed gives, watch the dev split, and report the test split once at the end.

    If a data set has no dev split, a training with evaluations takes ``validation_share`` of the training samples as
    one.

    Resumes from ``<output>/checkpoint`` if an earlier attempt left one, else starts from the input ``checkpoint`` if
    given, else from the seed. Batches are complete: remaining rows of an epoch are left out of that epoch. Also writes
    ``<output>/metrics.jsonl``, the picture ``<output>/report.svg`` and ``<output>/curves``. With several members, each
    trains on its part of a larger batch, and only the first one writes.

    Args:
        model: task and model in place of the box's, with the same parameters.
    Raises:
        Conflict: ``<output>/checkpoint`` belongs to another training.
        InvalidArgument: the data set does not fit the PEF, is smaller than a batch, or cannot be evaluated because the
            rows of a batch depend on each other; the input checkpoint cannot be resumed with these parameters; the PEF
            was compiled to serve.
        PefMismatch: the PEF cannot evaluate the model, or was not compiled for several members.
        PeerLost: another member died or does not answer.
        RuntimeFault: the loss is not a number any more.
        Cancelled: between two steps.
    """
    shape = read_shape(context.box, inputs["pef"])
    shape.require(TRAIN, "train")
    options = options_from(parameters)
    task, entry = model or (task_of(shape.task), entry_of(context.box))
    data = task.open_data(entry, shape, inputs["dataset"])
    shape = with_names(shape, data)
    assert shape.identity is not None
    members = Members.meet()
    batch_size = shape.batch_size * members.count * shape.accumulation_steps
    data, held_share = _with_validation(context, data, options, batch_size)
    split, watched = reported_split(data), watched_split(data)
    steps_per_epoch = _steps_per_epoch(data, batch_size)
    if options.evaluate_every and split is None:
        raise InvalidArgument(
            "evaluate_every needs a dev or test split, which the data set lacks; set validation_share above 0, or "
            "preprocess again"
        )
    total = steps_per_epoch * options.epochs
    total = min(total, options.max_steps or total)
    identity = Identity(
        shape.model, dict(shape.sizes), batch_size, data.digest, options.seed, shape.optimizer, shape.lora_rank,
        held_share, options.ema_decay, shape.layer_decay,
    )  # fmt: skip
    if shape.lora_rank and "checkpoint" not in inputs and not has_checkpoint(output / "checkpoint"):
        raise InvalidArgument(
            "the PEF trains only adapters (lora_rank) and needs frozen weights; pass the input checkpoint with "
            "continue_as=weights"
        )
    folder = output / "checkpoint"
    if "checkpoint" in inputs and not has_checkpoint(folder):
        check_checkpoint(shape, inputs["checkpoint"])

    program = ModelProgram(shape, options.seed, entry)
    program.load(inputs["pef"])
    try:
        for held in {split, watched} - {None}:
            program.check_evaluation(next(data.batches(shape.batch_size, options.seed, 0, 0)), data.count(str(held)))
        start = _starting_point(
            context, program, folder, inputs.get("checkpoint"), identity, options, shape, data.count("train")
        )
        start = replace(start, step=members.begin_at(start.step))
        if start.step:
            context.log(f"resumed from step {start.step} of {total}")
        run = TrainingRun(
            program, task, data, options, context, identity, shape.identity, start, folder, total, steps_per_epoch,
            members,
        )  # fmt: skip
        if not members.is_first:
            return _follow(run)
        with TrainingJournal(output, start.step) as journal:
            with span("train", {"rdukit.steps": total - start.step}):
                ended = run.go(journal)
            if not has_checkpoint(folder):
                run.save()
            data.keep_with(folder)
            with span("evaluate"):
                validation, scores = run.validate(journal), run.evaluate(journal)
        totals = run.totals()
        trained = sum(p.numel() for p in program.model.parameters() if p.requires_grad)
    finally:
        program.close()
    write_atomic(output / "report.svg", _picture(context, output, run.step).encode())
    figures = {**_figures(totals, run.step, start.step, ended, steps_per_epoch), "trained_parameters": trained}
    if members.count > 1:
        figures["members"] = members.count
    if validation is not None:
        named = {"validation_loss": validation.loss, "validation_accuracy": validation.accuracy}
        figures |= {name: value for name, value in named.items() if value is not None}
    if scores is not None:
        figures |= {"split": split, **scores.figures()}
    context.log(_in_words(figures, scores))
    if totals.judged.best_score is not None:
        figures |= {"best_step": totals.judged.best_step, f"best_{options.best_by}": totals.judged.best_score}
    made = {"checkpoint": folder, "metrics": journal.path, "report": output / "report.svg"}
    made["curves"] = write_curves(journal.path, output / "curves")
    slots = {slot.name for slot in context.box.slots_of(Verb.TRAIN).outputs}
    return VerbResult(figures, {name: path for name, path in made.items() if name in slots})


def _follow(run: TrainingRun) -> VerbResult:
    """Train as a further member, to the end that the first one announces."""
    with TemporaryDirectory() as folder, TrainingJournal(Path(folder), 0) as journal:
        run.go(journal)
    return VerbResult({}, {})


def _with_validation(
    context: VerbContext, data: TaskData, options: TrainingOptions, batch: int
) -> tuple[TaskData, float]:  # fmt: skip
    """Return the data set with a split to watch, and the share of its training samples that this takes."""
    if not options.evaluate_every or data.count(DEV):
        return data, 0.0
    if not options.held_share:
        context.log(
            "the data set has no dev split and validation_share is 0, so evaluations use the reported test split, "
            "whose figures are then too good; set validation_share above 0"
        )
        return data, 0.0
    made = data.with_validation(options.held_share)
    if made.count("train") < batch:
        raise InvalidArgument(
            f"the data set has no dev split; without {made.count(DEV)} samples to validate with, only "
            f"{made.count('train')} are left to train on, fewer than the {batch} of a step; lower validation_share or "
            "the batch size",
            parameter="validation_share",
        )
    context.log(
        f"the data set has no dev split: {made.count(DEV)} of its {data.count('train')} training samples "
        f"(validation_share {options.held_share:g}) are held out to validate"
    )
    return made, options.held_share


def _steps_per_epoch(data: TaskData, batch: int) -> int:
    count = data.count("train")
    if count < batch:
        raise InvalidArgument(f"the data set has {count} training samples, fewer than a batch of {batch}")
    return count // batch


def _figures(
    totals: TrainingTotals, step: int, resumed_from: int, ended: str, steps_per_epoch: int
) -> dict[str, object]:
    return {
        "steps": step,
        "epochs": round(step / steps_per_epoch, 4),
        "loss": totals.epoch_loss / totals.epoch_steps if totals.epoch_steps else None,
        "ended_by": ended,
        "train_seconds": totals.train_seconds,
        "host_seconds": totals.host_seconds,
        "emulated_seconds": totals.emulated_seconds,
        "emulated_cycles": totals.emulated_cycles,
        "resumed_from_step": resumed_from,
    }


def _picture(context: VerbContext, output: Path, steps: int) -> str:
    return draw_loss_curve(read_lines(output / "metrics.jsonl"), f"{context.box.name}: {steps} steps")


def _in_words(figures: Mapping[str, object], scores: Scores | None) -> str:
    """Describe a training in one line: its steps, its end, its loss and its scores."""
    words = f"trained {figures['steps']} steps; ended by {figures['ended_by']}"
    if figures["loss"] is not None:
        words += f"; loss {plain(figures['loss'])} (mean of the epoch's steps)"
    if scores is None:
        return words
    held = ", ".join(f"{name} {plain(figures[name])}" for name in scores.figures())
    return f"{words}; {held} on {scores.samples} {figures['split']} samples"


def _starting_point(
    context: VerbContext, program: ModelProgram, folder: Path, given: Path | None, identity: Identity,
    options: TrainingOptions, shape: Shape, samples: int,
) -> Checkpoint:  # fmt: skip
    """Prepare the device for the step where the training continues, and return that point."""
    if has_checkpoint(folder):
        found = _newest_whole(context, folder)
        difference = identity.find_difference(found.identity)
        if difference is not None:
            raise Conflict(
                f"{folder} holds a checkpoint of another training ({difference}); {_same_share(identity, found)}use "
                "another output folder, or pass it as the input checkpoint with continue_as=weights"
            )
        if found.model is not None and shape.identity is not None:
            require_same(
                found.model, shape.identity, f"the checkpoint in {folder}", "the PEF with its data set",
                "use another output folder",
            )  # fmt: skip
        return _resume(program, found)
    if given is None:
        return _at_the_beginning(identity)
    if options.continue_as == "weights":
        program.parameters_to_device(load_parameters(given, wanted=shape)[1])
        return _at_the_beginning(identity)
    found = load_checkpoint(given)
    if options.continue_as == "rows":
        found = with_rows_a_step(found, identity.batch_size, samples)
    difference = identity.find_difference(found.identity)
    if difference is not None:
        advice = "pass continue_as=weights to take only its parameters"
        if identity.find_difference(replace(found.identity, batch_size=identity.batch_size)) is None:
            advice = (
                f"a step here uses {identity.batch_size} rows over all members; pass continue_as=rows to continue at "
                "its row, or continue_as=weights to take only its parameters"
            )
        raise InvalidArgument(
            f"the input checkpoint is of another training ({difference}); its position is not usable here: "
            f"{_same_share(identity, found)}{advice}"
        )
    return _resume(program, found)


def _same_share(identity: Identity, found: Checkpoint) -> str:
    """Return how to continue with a checkpoint that differs only in its validation samples; else nothing."""
    share = found.identity.validation_share
    is_alone = replace(identity, validation_share=share).find_difference(found.identity) is None
    return f"pass validation_share={share:g} to continue as it began, or " if is_alone else ""


def _newest_whole(context: VerbContext, folder: Path) -> Checkpoint:
    """Return the newest undamaged checkpoint."""
    try:
        return load_checkpoint(folder)
    except InvalidArgument as damage:
        try:
            found = load_checkpoint(folder, "previous")
        except RdukitError:
            raise damage from None
        context.log(f"the newest checkpoint is missing or damaged; continuing from the previous one, step {found.step}")
        return found


def _at_the_beginning(identity: Identity) -> Checkpoint:
    """Return step 0 with the device's current parameters."""
    empty: dict[str, object] = {"state": {}, "param_groups": []}
    return Checkpoint(0, {}, empty, torch.get_rng_state(), identity, TrainingTotals())


def _resume(program: ModelProgram, found: Checkpoint) -> Checkpoint:
    program.parameters_to_device(found.parameters)
    program.optimizer_to_device(found.optimizer)
    torch.set_rng_state(found.random)
    return found
