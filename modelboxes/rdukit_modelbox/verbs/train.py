"""Train: a PEF and a data set → checkpoints. An attempt that died is continued by asking for the same again."""

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from rdukit.errors import Conflict, InvalidArgument, RuntimeFault
from rdukit_modelbox.checkpoints import (
    Checkpoint,
    Identity,
    Totals,
    has_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from rdukit_modelbox.context import Progress, VerbContext, VerbResult
from rdukit_modelbox.datasets import check_dataset_fits, load_dataset
from rdukit_modelbox.evaluation import evaluate
from rdukit_modelbox.legal import ParameterValue
from rdukit_modelbox.program import Program, read_shape


def run_train(
    context: VerbContext, parameters: Mapping[str, ParameterValue], inputs: Mapping[str, Path], output: Path
) -> VerbResult:
    """Train by the order that the seed gives and evaluate on the test split.

    Resumes from ``<output>/checkpoint`` if an earlier attempt left one, else starts from the input ``checkpoint`` if
    given, else from the seed. Batches are whole: the rest of an epoch that fills no batch is left out of that epoch.

    Raises:
        Conflict: ``<output>/checkpoint`` belongs to another training.
        InvalidArgument: the data set does not fit the PEF, is smaller than a batch, or the input checkpoint cannot be
            resumed with these parameters.
        RuntimeFault: the loss is not a number any more.
        Cancelled: between two steps.
    """
    shape = read_shape(context.box, inputs["pef"])
    dataset = load_dataset(inputs["dataset"])
    check_dataset_fits(dataset, shape.features, shape.classes)
    seed, batch = int(parameters["seed"]), shape.batch_size
    steps_per_epoch = len(dataset.train) // batch
    if steps_per_epoch == 0:
        raise InvalidArgument(f"the data set has {len(dataset.train)} training samples, a batch is {batch}")
    total = steps_per_epoch * int(parameters["epochs"])
    total = min(total, int(parameters["max_steps"]) or total)
    identity = Identity(shape.model, dict(shape.sizes), batch, dataset.digest, seed)
    folder = output / "checkpoint"

    program = Program(shape, seed)
    program.load(inputs["pef"])
    try:
        start = _starting_point(program, folder, inputs.get("checkpoint"), identity, parameters)
        if start.step:
            context.log(f"resumed from step {start.step} of {total}")
        run = _Run(program, context, identity, start)
        rates = {name: float(parameters[name]) for name in ("lr", "momentum", "weight_decay")}
        every = int(parameters["checkpoint_every"])
        order_N = _order(seed, -1, 0)
        epoch_of_order = -1
        for step in range(start.step, total):
            context.check_cancelled()
            epoch, index = divmod(step, steps_per_epoch)
            if epoch != epoch_of_order:
                order_N, epoch_of_order = _order(seed, epoch, len(dataset.train)), epoch
            chosen_B = order_N[index * batch : (index + 1) * batch]
            loss = program.train_step(dataset.train.features_NF[chosen_B], dataset.train.labels_N[chosen_B], rates)
            run.count(step, total, loss, is_epoch_start=index == 0)
            if (step + 1) % every == 0 or step + 1 == total:
                run.save(folder, step + 1)
        if start.step >= total and not has_checkpoint(folder):
            run.save(folder, start.step)
        found = evaluate(program, dataset.test, context)
        totals = run.totals()
    finally:
        program.close()
    steps = max(start.step, total)
    context.log(f"trained {steps} steps, accuracy {found.accuracy:.4f} on {len(dataset.test)} test samples")
    figures = {
        "steps": steps,
        "epochs": round(steps / steps_per_epoch, 4),
        "loss": totals.epoch_loss / totals.epoch_steps if totals.epoch_steps else None,
        "accuracy": found.accuracy,
        "host_seconds": totals.host_seconds,
        "emulated_seconds": totals.emulated_seconds,
        "emulated_cycles": totals.emulated_cycles,
        "resumed_from_step": start.step,
    }
    return VerbResult(figures, {"checkpoint": folder})


class _Run:
    """Sums of one attempt, on top of those it started from."""

    def __init__(self, program: Program, context: VerbContext, identity: Identity, start: Checkpoint) -> None:
        self._program = program
        self._context = context
        self._identity = identity
        self._start = start
        self._began = time.perf_counter()
        self._epoch_loss = start.totals.epoch_loss
        self._epoch_steps = start.totals.epoch_steps

    def count(self, step: int, total: int, loss: float, is_epoch_start: bool) -> None:
        """Record the loss of the step with index ``step`` and tell how far it is."""
        if not math.isfinite(loss):
            raise RuntimeFault(f"the loss is {loss} at step {step}; lower lr (or momentum) and train again", step=step)
        if is_epoch_start:
            self._epoch_loss, self._epoch_steps = 0.0, 0
        self._epoch_loss += loss
        self._epoch_steps += 1
        elapsed = max(time.perf_counter() - self._began, 1e-9)
        done = step + 1 - self._start.step
        self._context.progress(
            Progress(
                "train", step + 1, total, loss=loss, throughput=done * self._program.shape.batch_size / elapsed,
                eta_s=elapsed / done * (total - step - 1),
            )
        )  # fmt: skip

    def totals(self) -> Totals:
        """All attempts so far."""
        figures, before = self._program.report(), self._start.totals
        return Totals(
            host_seconds=before.host_seconds + float(figures["host_seconds"]),
            emulated_seconds=before.emulated_seconds + float(figures["emulated_seconds"]),
            emulated_cycles=before.emulated_cycles + int(figures["emulated_cycles"]),
            epoch_loss=self._epoch_loss,
            epoch_steps=self._epoch_steps,
        )

    def save(self, folder: Path, step: int) -> None:
        """Write a checkpoint after ``step`` whole steps."""
        path = save_checkpoint(
            folder,
            Checkpoint(
                step=step, parameters=self._program.parameters_to_host(), optimizer=self._program.optimizer_to_host(),
                random=torch.get_rng_state(), identity=self._identity, totals=self.totals(),
            ),
        )  # fmt: skip
        self._context.log(f"checkpoint {path.name}")


def _starting_point(
    program: Program, folder: Path, given: Path | None, identity: Identity, parameters: Mapping[str, ParameterValue]
) -> Checkpoint:
    """Put the device where the training continues, and say where that is."""
    if has_checkpoint(folder):
        found = load_checkpoint(folder)
        difference = identity.find_difference(found.identity)
        if difference is not None:
            raise Conflict(
                f"{folder} holds a checkpoint of another training ({difference}); use another output folder, or pass "
                f"it as the input checkpoint with continue_as=weights"
            )
        return _resume(program, found)
    if given is None:
        empty: dict[str, object] = {"state": {}, "param_groups": []}
        return Checkpoint(0, {}, empty, torch.get_rng_state(), identity, Totals())
    found = load_checkpoint(given)
    if parameters["continue_as"] == "weights":
        program.parameters_to_device(found.parameters)
        return replace(found, step=0, random=torch.get_rng_state(), totals=Totals())
    difference = identity.find_difference(found.identity)
    if difference is not None:
        raise InvalidArgument(
            f"the input checkpoint is of another training ({difference}); its position means nothing here: "
            f"pass continue_as=weights to take only its parameters"
        )
    return _resume(program, found)


def _resume(program: Program, found: Checkpoint) -> Checkpoint:
    program.parameters_to_device(found.parameters)
    program.optimizer_to_device(found.optimizer)
    torch.set_rng_state(found.random)
    return found


def _order(seed: int, epoch: int, count: int) -> NDArray[np.int64]:
    """The samples' order in ``epoch``: from seed and epoch alone, so any step can be found again."""
    return np.random.default_rng([seed, max(epoch, 0)]).permutation(count)
