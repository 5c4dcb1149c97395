"""An attempt of a training: counts, evaluates, writes checkpoints and the journal."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch

from rdukit.errors import Cancelled, RuntimeFault
from rdukit.pef.identity import ModelIdentity
from rdukit.units import plain
from rdukit_modelbox.preprocessing.datasets import DEV
from rdukit_modelbox.tasks.base import Batch, Scores, Task, TaskData, reported_split, watched_split
from rdukit_modelbox.tasks.program import ModelProgram
from rdukit_modelbox.training.averages import WeightAverage
from rdukit_modelbox.training.checkpoints import Checkpoint, Identity, TrainingTotals, save_checkpoint
from rdukit_modelbox.training.journal import TrainingJournal
from rdukit_modelbox.training.members import Members
from rdukit_modelbox.training.options import TrainingOptions, judge_evaluation, learning_rate, reason_to_stop
from rdukit_modelbox.verbs.context import Progress, VerbContext

#: A loss this many times as large as the first one has diverged.
DIVERGED: Final = 1e6


class TrainingRun:
    """An attempt that begins at ``start``, on top of the sums of earlier ones."""

    def __init__(
        self, program: ModelProgram, task: Task, data: TaskData, options: TrainingOptions, context: VerbContext,
        identity: Identity, model: ModelIdentity, start: Checkpoint, folder: Path, total: int, steps_per_epoch: int,
        members: Members | None = None,
    ) -> None:  # fmt: skip
        """``identity``: its batches are those of all members together; ``model``: identity of the model in its
        checkpoints.
        """
        self._program = program
        self._task = task
        self._data = data
        self._options = options
        self._context = context
        self._identity = identity
        self._model = model
        self._start = start
        self._folder = folder
        self._total = total
        self._steps_per_epoch = steps_per_epoch
        self._members = members or Members()
        self._began = time.perf_counter()
        #: Earlier runs on the device, which checked the attempt's needs; the training's figures exclude them.
        self._checks = program.report()
        #: Loss of this attempt's first step.
        self._first_loss: float | None = None
        self._epoch_loss = start.totals.epoch_loss
        self._epoch_steps = start.totals.epoch_steps
        self._watched, self._reported = watched_split(data), reported_split(data)
        #: Split → its newest evaluation of this attempt, with its step.
        self._scores: dict[str, tuple[int, Scores]] = {}
        named = program.model.named_parameters(remove_duplicate=False)  # each name of a tied weight
        trained = {name for name, value in named if value.requires_grad}
        self._average = (
            WeightAverage(options.ema_decay, trained, start.average)
            if options.ema_decay and self._members.is_first
            else None
        )
        self.judged = start.totals.judged
        #: Whole steps so far.
        self.step = start.step
        #: Steps so far that are in a checkpoint.
        self._saved_step = start.step

    def go(self, journal: TrainingJournal) -> str:
        """Train until the last step or a reason to stop, which is returned: ``steps``, ``time``, ``target``, …

        Raises:
            RuntimeFault: the loss is no longer finite, or has diverged.
            Cancelled: between two steps.
        """
        # An earlier attempt may have had its own reason to stop; only time spent training counts.
        reason = reason_to_stop(self._options, self.judged, self._start.totals.train_seconds)
        if self._members.agree(reason is not None or self.step >= self._total):
            return reason or "steps"
        for step, batch in self._batches():
            self._check_cancelled(journal)
            self._train(step, batch, journal)
            is_better = self._evaluate_if_due(journal)
            reason = reason_to_stop(self._options, self.judged, self.seconds())
            is_last = self._members.agree(reason is not None or self.step == self._total)
            is_due = is_last or is_better or self.step % self._options.checkpoint_every == 0
            if is_due and self._members.is_first:
                journal.flush()
                self.save(is_best=is_better)
            if is_last:
                break
        return reason or "steps"

    def validate(self, journal: TrainingJournal) -> Scores | None:
        """Return scores on the split ``dev`` after the steps so far; None if the data set has none."""
        return self._evaluate(DEV, journal) if self._watched == DEV else None

    def evaluate(self, journal: TrainingJournal) -> Scores | None:
        """Return scores on the split that is reported, also in the journal; None if the data set has none."""
        return self._evaluate(self._reported, journal)

    def _evaluate(self, split: str | None, journal: TrainingJournal) -> Scores | None:
        if split is None:
            return None
        known = self._scores.get(split)
        if known is not None and known[0] == self.step:
            return known[1]
        with self._averaged_weights():
            scores = self._task.evaluate(self._program, self._data, split, self._context, "evaluate")
        if not math.isfinite(scores.loss):
            raise RuntimeFault(
                f"the held-out loss is {scores.loss} after step {self.step}; lower lr (or momentum) and train again",
                step=self.step,
            )
        journal.record_evaluation(self.step, split, scores.to_json())
        self._scores[split] = self.step, scores
        return scores

    @contextmanager
    def _averaged_weights(self) -> Iterator[None]:
        """Put the average of the weights, if there is one, on the device within the block."""
        if self._average is None or not self._average.weights:
            yield
            return
        newest = self._program.parameters_to_host()
        self._program.parameters_to_device(self._average.weights)
        try:
            yield
        finally:
            self._program.parameters_to_device(newest)

    def totals(self) -> TrainingTotals:
        """Return the totals of all attempts so far."""
        figures, checks, before = self._program.report(), self._checks, self._start.totals
        return TrainingTotals(
            host_seconds=before.host_seconds + float(figures["host_seconds"] - checks["host_seconds"]),
            emulated_seconds=before.emulated_seconds + float(figures["emulated_seconds"] - checks["emulated_seconds"]),
            emulated_cycles=before.emulated_cycles + int(figures["emulated_cycles"] - checks["emulated_cycles"]),
            epoch_loss=self._epoch_loss,
            epoch_steps=self._epoch_steps,
            train_seconds=self.seconds(),
            judged=self.judged,
        )

    def seconds(self) -> float:
        """Return the seconds of training, over all attempts."""
        return self._start.totals.train_seconds + time.perf_counter() - self._began

    def save(self, is_best: bool = False) -> None:
        """Write a checkpoint of the steps so far."""
        path = save_checkpoint(
            self._folder,
            Checkpoint(
                step=self.step, parameters=self._program.parameters_to_host(),
                optimizer=self._program.optimizer_to_host(), random=torch.get_rng_state(), identity=self._identity,
                totals=self.totals(), model=self._model, average=self._average.weights if self._average else {},
            ),
            is_best,
        )  # fmt: skip
        self._saved_step = self.step
        self._context.log(f"checkpoint {path.name}")

    def _batches(self) -> Iterator[tuple[int, Batch]]:
        """(index of the step, its batch) from the first that is not done to the last."""
        step = self._start.step
        while step < self._total:
            epoch, start = divmod(step, self._steps_per_epoch)
            for batch in self._data.batches(self._identity.batch_size, self._options.seed, epoch, start):
                yield step, batch
                step += 1
                if step == self._total or step % self._steps_per_epoch == 0:
                    break

    def _check_cancelled(self, journal: TrainingJournal) -> None:
        """Stop between two steps if requested, with a checkpoint, so that the next attempt loses no step."""
        cancelled = None
        try:
            self._context.check_cancelled()
        except Cancelled as asked:
            cancelled = asked
        if not self._members.agree(cancelled is not None):
            return
        if self.step > self._saved_step and self._members.is_first:
            journal.flush()
            self.save()
        raise cancelled or Cancelled("the first member was cancelled")

    def _train(self, step: int, batch: Batch, journal: TrainingJournal) -> None:
        options = self._options
        rate = learning_rate(
            step, self._total, options.lr, options.schedule, options.warmup_steps, options.final_lr_share
        )
        began = time.perf_counter()
        rows = self._members.part_of(batch)
        loss = self._program.train_step(rows, options.scalars(rate), is_member=self._members.count > 1)
        loss = self._members.mean(loss)
        if self._average is not None:
            self._average.add(self._program.parameters_to_host())
        seconds = max(time.perf_counter() - began, 1e-9)
        self._first_loss = loss if self._first_loss is None else self._first_loss
        if not math.isfinite(loss) or abs(loss) > DIVERGED * max(abs(self._first_loss), 1.0):
            raise RuntimeFault(f"the loss is {loss} at step {step}; lower lr (or momentum) and train again", step=step)
        if step % self._steps_per_epoch == 0:
            self._epoch_loss, self._epoch_steps = 0.0, 0
        self._epoch_loss += loss
        self._epoch_steps += 1
        self.step = step + 1
        samples = self._identity.batch_size / seconds
        line = {"step": self.step, "loss": loss, "lr": rate, "samples_per_s": round(samples, 3)}
        if self._data.tokens_per_sample:
            line["tokens_per_s"] = round(samples * self._data.tokens_per_sample, 3)
        journal.record(line)
        elapsed = max(time.perf_counter() - self._began, 1e-9)
        done = self.step - self._start.step
        self._context.progress(
            Progress(
                "train", self.step, self._total, loss=loss, throughput=done * self._identity.batch_size / elapsed,
                eta_s=elapsed / done * (self._total - self.step),
            )
        )  # fmt: skip

    def _evaluate_if_due(self, journal: TrainingJournal) -> bool:
        """Evaluate if it is time; whether this is the best so far."""
        every = self._options.evaluate_every
        if not every or (self.step % every and self.step != self._total) or not self._members.is_first:
            return False
        scores = self._evaluate(self._watched, journal)
        if scores is None:
            return False
        self.judged = judge_evaluation(self.judged, self.step, scores.loss, scores.accuracy, self._options.best_by)
        words = ", ".join(f"{name} {plain(value)}" for name, value in scores.figures().items())
        is_better = self.judged.best_step == self.step
        self._context.log(f"step {self.step}: {words} on {self._watched}{', the best so far' if is_better else ''}")
        return is_better
