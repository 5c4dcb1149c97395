"""The SambaFlow program of a box: the same model, inputs and optimizer at compile, train and infer.

Axes: B batch, N rows, F features, C classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from rdukit.errors import InvalidArgument
from rdukit.pef.checkpoint_files import find_differences
from rdukit_modelbox.contract.models import read_shape
from rdukit_modelbox.tasks.adapters import add_adapters, fit_adapters, head_outputs
from rdukit_modelbox.tasks.frozen_weights import fit_frozen, freeze_weights
from rdukit_modelbox.tasks.layer_rates import levels_of, rate_shares
from rdukit_serving.device.parameters import check_tied
from rdukit_serving.shape import IGNORED, SERVE, TRAIN, Shape, TensorNames
from rdukit_zoo.registry import GENERATES_TEXT, WITHOUT_TARGET, ModelEntry, get_model
from sambaflow import samba
from sambaflow.samba import utils
from sambaflow.samba.graph import FwdGraph
from sambaflow.sessions.compiling import SILENT
from sambaflow.sessions.modes import evaluating

#: Compiled-in values; every run passes its own. They must not be zero, so that momentum has its state.
COMPILED_LR: Final = 0.01
COMPILED_MOMENTUM: Final = 0.9
COMPILED_WEIGHT_DECAY: Final = 1e-4
COMPILED_GRAD_NORM: Final = 1.0
COMPILED_BETAS: Final = (0.9, 0.999)
#: Run-time scalar that only a PEF compiled with ``clip_gradients`` has.
CLIP: Final = "max_grad_norm"
#: Optimizer → run-time scalars that only others have.
_OF_OTHER_OPTIMIZERS: Final = {"adamw": frozenset({"momentum"}), "sgd": frozenset({"beta1", "beta2"})}
#: The graph for one row in a PEF that serves batches; also the prefix of its inputs' names.
ONE_ROW: Final = "one_row"
#: Largest difference of equal answers: additions may come in another order, and bf16 rounds to 2**-8.
TOLERANCES: Final = {"f32": 1e-4, "bf16": 2.0**-6}
#: Tasks whose second input is labels, of which rows that only fill a batch up have none that count.
_LABELLED: Final = frozenset({"classification", *GENERATES_TEXT})
#: Values that a task's model returns with its target, and without; other tasks: a loss and an output.
OUTPUTS: Final = {
    ("classification", TRAIN): ("loss", "logits"),
    ("classification", SERVE): ("logits",),
    ("language-modelling", TRAIN): ("loss",),
    ("text-to-text", TRAIN): ("loss",),
    ("speech-to-text", TRAIN): ("loss",),
    ("self-supervised", SERVE): ("loss", "output"),
    ("embedding", SERVE): ("output",),
}


class ModelProgram:
    """Model, inputs and optimizer, and after ``load`` the traced outputs on leased tiles.

    To serve there is neither optimizer nor label: the last of the entry's inputs is left out.
    """

    def __init__(self, shape: Shape, seed: int = 0, entry: ModelEntry | None = None) -> None:
        """Build everything from scratch; earlier graphs of this process are forgotten.

        ``entry``: from a box's own module; None: the zoo's entry for the shape's model.
        """
        samba.session.reset()
        utils.set_seed(seed)
        entry = get_model(shape.model) if entry is None else entry
        serving = entry.serving if shape.purpose == SERVE else None
        build, self._make_inputs = (serving or entry).build, (serving or entry).make_inputs
        self.model = build(**shape.sizes)
        if serving is not None:
            _check_same_parameters(self.model, entry, shape)
        tensors = tensor_names(self.model)
        if shape.lora_rank:
            heads = head_outputs(shape.sizes)
            add_adapters(self.model, shape.lora_rank, shape.lora_alpha, *heads, layers=shape.lora_layers)
            freeze_weights(self.model, shape.base_precision, *heads)
        samba.from_torch_model_(self.model)
        inputs = self._make_inputs(shape.batch_size, **shape.sizes)
        #: Names of the arrays of a data set, the target last if the task has one.
        self.array_names = [str(tensor.sn_name) for tensor in inputs]
        self._integers = {str(tensor.sn_name) for tensor in inputs if not tensor.dtype.is_floating_point}
        self._entry = entry
        self.inputs = inputs if shape.purpose == TRAIN else self._served(inputs)
        #: Share of the learning rate of each of the optimizer's groups; empty if all have the same.
        self._shares: tuple[float, ...] = ()
        self.optimizer = self._build_optimizer(shape) if shape.purpose == TRAIN else None
        if shape.purpose == SERVE:
            self.model.eval()
        outputs = serving.outputs if serving else outputs_of(entry.task, shape.purpose)
        identity = entry.identity(shape.sizes)
        self.shape = replace(shape, outputs=outputs, task=entry.task, identity=identity, tensors=tensors)
        self._traced: Any = None
        #: Whether a test showed that padding of a batch changes no row's answer.
        self._rows_are_alone = False

    def compile(
        self, name: str, folder: Path, mode: str, target: str, num_tiles: int, members: int = 1, *,
        builds_kernels: bool = True,
    ) -> Path:  # fmt: skip
        """Compile to ``<folder>/<name>/<name>.pef`` and return that path.

        With several ``members``, gradients can be averaged over as many members of a training. A PEF that serves
        batches gets a second graph over the same parameters, for requests of one row. Without ``builds_kernels``,
        native kernels are left to ``build_pef``.
        """
        config = {
            "output_folder": str(folder), "pef_name": name, "optim_level": mode, "arch": target,
            "num_tiles": num_tiles, "inference": self.optimizer is None, "precision": self.shape.precision,
            "log_level": SILENT, "builds_kernels": builds_kernels,
        }  # fmt: skip
        if self.optimizer is not None and members > 1:
            config |= {"data_parallel": True, "world_size": members}
        if self.optimizer is not None and self.shape.accumulation_steps > 1:
            config |= {"grad_accumulation_steps": self.shape.accumulation_steps}
        if self.optimizer is not None or self.shape.batch_size == 1:
            path = samba.session.compile(
                self.model, self.inputs, self.optimizer, name=name, config_dict=config,
                pef_metadata=self.shape.to_metadata(),
            )  # fmt: skip
            return Path(path)
        self._add_graphs()
        path = samba.session.compile_multigraph(name=name, config_dict=config, pef_metadata=self.shape.to_metadata())
        return Path(path)

    def _add_graphs(self) -> None:
        """Trace and register the graph for batches and the one for one row."""
        row = self._served(self._make_inputs(1, **self.shape.sizes))
        for tensor in row:
            tensor.sn_name = f"{ONE_ROW}_{tensor.sn_name}"
        batches = str(self.model.name)
        self._traced = samba.session.trace_multigraph(self.model, self.inputs)
        samba.session.add_graph(FwdGraph(self.inputs, self._traced, batches))
        answers = samba.session.trace_multigraph(self.model, row, ONE_ROW)
        samba.session.add_graph(FwdGraph(row, answers, ONE_ROW))
        self.shape = replace(self.shape, graphs={self.shape.batch_size: batches, 1: ONE_ROW})

    def _served(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the inputs that answer a request: all but the target."""
        takes_all = self._entry.serving is not None or self._entry.task in WITHOUT_TARGET
        return inputs if takes_all else inputs[:-1]

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of the last output, the batch first."""
        return tuple(self._traced[-1].shape)

    @property
    def output_scale(self) -> float:
        """Return the factor that brings an output into the model's unit."""
        scale = self._entry.output_scale
        return float(self.shape.sizes[scale]) if scale else 1.0

    def is_integer(self, name: str) -> bool:
        """Return whether the array of this name holds integers."""
        return name in self._integers

    def load(self, pef: Path) -> None:
        """Load the PEF, lease tiles and upload the parameters.

        Raises:
            PefError: the PEF cannot be used for this program.
            NoResources: no tiles or memory are free.
        """
        if self.shape.graphs:
            self._add_graphs()
            samba.session.init_multigraph_runtime(str(pef))
        else:
            self._traced = utils.trace_graph(self.model, self.inputs, self.optimizer, pef=str(pef))

    def check_evaluation(self, batch: Sequence[NDArray[Any]], samples: int) -> None:
        """Refuse data that could not be evaluated, before the training begins.

        Args:
            batch: any full one. samples: number of an evaluation's samples.
        Raises:
            PefMismatch: the model computes something else in evaluation mode, and the PEF has no graph for that.
            InvalidArgument: the last batch is not full, and padding changes its answers, or the model only takes full
                batches.
        """
        with evaluating(self.model):
            samba.session.check_mode(str(self.model.name))
        count = samples % self.shape.batch_size
        if self.shape.task not in _LABELLED:
            if count:
                self.forward_filled(list(batch), count)
                if self.shape.outputs[0] == "loss":
                    self.loss_of_rows([values[:count] for values in batch])
            return
        values, labels = batch[0], batch[1].copy()
        if self.shape.task in GENERATES_TEXT:
            labels[count:] = IGNORED
        if count and (labels[:count] != IGNORED).any():
            self.forward_filled([values, labels], count)

    def train_step(
        self, batch: Sequence[NDArray[Any]], rates: Mapping[str, float], *, is_member: bool = False
    ) -> float:
        """Run one whole step on one batch, an array per input, and return its loss before the update.

        With ``accumulation_steps`` the batch is divided into that many parts, whose gradients are added up before the
        update.

        Args:
            rates: run-time scalars by name, such as lr; those that the optimizer lacks are ignored.
            is_member: gradients are averaged over all members of the training before the update.
        Raises:
            PefMismatch: there are other members, and the PEF was not compiled for several.
            PeerLost: another member died or does not answer.
        """
        others = _OF_OTHER_OPTIMIZERS.get(self.shape.optimizer, frozenset())
        if not self.shape.clips_gradients and rates.get(CLIP) == COMPILED_GRAD_NORM:  # no limit was requested
            others |= {CLIP}
        scalars = {name: rate for name, rate in rates.items() if name not in others}
        if self._shares:
            rate = scalars.pop("lr")
            for group, share in zip(self._trained().param_groups, self._shares, strict=True):
                group["lr"] = rate * share
        if self.shape.accumulation_steps > 1:
            return self._accumulated_step(batch, scalars)
        outputs = samba.session.run(
            input_tensors=self._named(batch), output_tensors=self._traced, data_parallel=is_member,
            hyperparam_dict=scalars,
        )  # fmt: skip
        return float(samba.to_torch(outputs[0]).float().mean())

    def _accumulated_step(self, batch: Sequence[NDArray[Any]], scalars: Mapping[str, float]) -> float:
        """Run backward on each part of a batch, then the update with the gradients of the batch's mean loss."""
        size, loss = self.shape.batch_size, 0.0
        weights = self._part_weights(batch)
        for number, weight in enumerate(weights):
            part = [values[number * size : (number + 1) * size] for values in batch]
            outputs = samba.session.run(
                input_tensors=self._named(part), output_tensors=self._traced, section_types=["fwd", "bckwd"],
                grad_of_outputs=[torch.full(tuple(self._traced[0].shape), weight)], hyperparam_dict=dict(scalars),
            )  # fmt: skip
            loss += weight * float(samba.to_torch(outputs[0]).float().mean())
        ending = ["gradnorm", "opt"] if self.shape.clips_gradients else ["opt"]
        samba.session.run(
            input_tensors=[], output_tensors=self._traced, section_types=ending, hyperparam_dict=dict(scalars)
        )
        return loss

    def _part_weights(self, batch: Sequence[NDArray[Any]]) -> list[float]:
        """Return the share of each part in a batch's mean loss: its rows, or its labels that are not ``IGNORED``."""
        parts = self.shape.accumulation_steps
        if not np.issubdtype(batch[-1].dtype, np.integer):
            return [1 / parts] * parts
        counts = [int((labels != IGNORED).sum()) for labels in np.split(batch[-1], parts)]
        return [count / max(sum(counts), 1) for count in counts]

    def forward(self, batch: Sequence[NDArray[Any]]) -> tuple[torch.Tensor, ...]:
        """Forward only, on one batch, in evaluation mode; the outputs as f32, in the order of ``shape.outputs``.

        Dropout is off; batch norms use their running statistics and keep them unchanged.
        """
        with evaluating(self.model):
            outputs = samba.session.run(
                input_tensors=self._named(batch), output_tensors=self._traced, section_types=["fwd"],
                graph_name=str(self.model.name),
            )  # fmt: skip
        return tuple(samba.to_torch(output).float() for output in outputs)

    def forward_filled(self, batch: Sequence[NDArray[Any]], count: int) -> tuple[torch.Tensor, ...]:
        """``forward`` of a batch in which only the first ``count`` rows are real and the others fill it up.

        The first time it is tried whether other rows in their place would change the answers, or the loss.

        Raises:
            InvalidArgument: they would, so the rows of a batch depend on each other.
        """
        outputs = self.forward(batch)
        if count == self.shape.batch_size or self._rows_are_alone:
            return outputs
        given = 1 if self.shape.task in _LABELLED else len(batch)
        anew = [_filled_anew(values, count) for values in batch[:given]]
        found, other = (made[-1] for made in (outputs, self.forward([*anew, *batch[given:]])))
        found, other = (made[:count] if made.dim() else made for made in (found, other))
        tolerance = TOLERANCES[self.shape.precision] * max(1.0, float(found.abs().max()))
        if not bool(((found - other).abs() <= tolerance).all()):
            raise InvalidArgument(
                f"{count} samples do not fill batches of {self.shape.batch_size}, and padding would change the "
                "answers, because this model's rows depend on each other or on chance; use a multiple of the batch "
                "size, or compile with another batch size"
            )
        self._rows_are_alone = True
        return outputs

    def loss_of_rows(self, rows: Sequence[NDArray[Any]]) -> float:
        """Return the loss of fewer rows than a batch has, an array per input, in evaluation mode.

        A graph's loss is that of its whole batch, in which rows that only fill it up would count. Instead the model's
        own forward computes it on the host, in f32, with the device's parameters.

        Raises:
            InvalidArgument: the model takes only full batches.
        """
        samba.session.to_cpu(self.model)
        kept = {name: plain_tensor(value) for name, value in self.model.state_dict(keep_vars=True).items()}
        given = tuple(torch.from_numpy(values) for values in rows)
        try:
            with evaluating(self.model), torch.no_grad():
                made = torch.func.functional_call(self.model, kept, given, tie_weights=False)
        except (RuntimeError, ValueError, TypeError, IndexError) as cause:
            raise InvalidArgument(
                f"the last {len(given[0])} samples do not fill a batch of {self.shape.batch_size}, and the model "
                "accepts only full ones; use a multiple of the batch size"
            ) from cause
        return float((made[0] if isinstance(made, tuple) else made).float().mean())

    def logits_of(self, features_NF: NDArray[np.float32]) -> NDArray[np.float32]:
        """Forward of a classifier for at most one batch of rows; padding with zeros is cut off again.

        Returns:
            [N, C] float32.
        Raises:
            InvalidArgument: that rest would change the answers.
        """
        count, batch = len(features_NF), self.shape.batch_size
        padded = np.zeros((batch, self.shape.features), np.float32)
        padded[:count] = features_NF
        kind = np.int64 if self.is_integer(self.array_names[-1]) else np.float32
        labels = [np.zeros(batch, kind)] if self.shape.purpose == TRAIN else []
        logits = self.forward_filled([padded, *labels], count)[-1]
        found: NDArray[np.float32] = logits.reshape(batch, -1)[:count].numpy()
        return found

    def parameters_to_host(self) -> dict[str, torch.Tensor]:
        """Device parameters and buffers by name."""
        samba.session.to_cpu(self.model)
        return {name: plain_tensor(value) for name, value in self.model.state_dict().items()}

    def optimizer_to_host(self) -> dict[str, Any]:
        """Device optimizer state, as a ``state_dict``."""
        samba.session.to_cpu(self.optimizer)
        value: dict[str, Any] = self._trained().state_dict()
        return value

    def parameters_to_device(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """Put parameters by name on the device; adapters are fitted to the model, see ``fit_adapters``.

        Raises:
            InvalidArgument: a name or shape differs from the model's.
        """
        own = {name: plain_tensor(value) for name, value in self.model.state_dict().items()}
        check_tied(self.shape.tensors, parameters)
        fitted = dict(fit_frozen(fit_adapters(parameters, own), own))
        differences = find_differences(*({name: value.shape for name, value in t.items()} for t in (fitted, own)))
        if differences is not None:
            raise InvalidArgument(
                f"the checkpoint belongs to another model: {differences}; use a checkpoint of this model, or compile "
                "with "
                "the checkpoint's sizes"
            )
        self.model.load_state_dict(fitted)
        samba.session.to_rdu(self.model)

    def optimizer_to_device(self, state: Mapping[str, Any]) -> None:
        """Put optimizer state on the device."""
        self._trained().load_state_dict(dict(state))
        samba.session.to_rdu(self.optimizer)

    def report(self) -> dict[str, Any]:
        """Emulated and host figures since ``load``."""
        figures: dict[str, Any] = samba.session.report()
        return figures

    def close(self) -> None:
        """Tear down and release the lease."""
        samba.session.close()

    def _build_optimizer(self, shape: Shape) -> Any:
        clip = COMPILED_GRAD_NORM if shape.clips_gradients else None
        parameters: Any = self.model.parameters()
        if shape.layer_decay != 1:
            named = [(name, value) for name, value in self.model.named_parameters() if value.requires_grad]
            levels = levels_of([name for name, _ in named])
            shares = rate_shares(levels, shape.layer_decay)
            parameters = [
                {"params": [value for (_, value), level in zip(named, levels, strict=True) if level == wanted]}
                for wanted in shares
            ]
            self._shares = tuple(shares.values())
        if shape.optimizer == "adamw":
            return samba.optim.AdamW(
                parameters, lr=COMPILED_LR, betas=COMPILED_BETAS, weight_decay=COMPILED_WEIGHT_DECAY,
                max_grad_norm=clip,
            )  # fmt: skip
        if shape.optimizer != "sgd":
            raise InvalidArgument(f"optimizer {shape.optimizer!r} is not valid; expected sgd, adamw")
        return samba.optim.SGD(
            parameters, lr=COMPILED_LR, momentum=COMPILED_MOMENTUM, weight_decay=COMPILED_WEIGHT_DECAY,
            max_grad_norm=clip,
        )  # fmt: skip

    def _trained(self) -> Any:
        self.shape.require(TRAIN, "an optimizer")
        return self.optimizer

    def _named(self, batch: Sequence[NDArray[Any]]) -> list[Any]:
        return [
            samba.from_torch_tensor(torch.from_numpy(values), name=dummy.sn_name)
            for values, dummy in zip(batch, self.inputs, strict=True)
        ]


def tensor_names(model: nn.Module) -> TensorNames:
    """Return a PEF's information about the names of a model's tensors."""
    state = model.state_dict(keep_vars=True)
    groups: dict[int, list[str]] = {}
    for name, value in state.items():
        groups.setdefault(id(value), []).append(name)
    buffers = tuple(name for name, _ in model.named_buffers() if name in state)
    return TensorNames(buffers, tuple(tuple(group) for group in groups.values() if len(group) > 1))


def outputs_of(task: str, purpose: str) -> tuple[str, ...]:
    """Return the names of the values that a task's model returns, in order."""
    return OUTPUTS.get((task, purpose), ("loss", "output") if purpose == TRAIN else ("output",))


def _check_same_parameters(served: nn.Module, entry: ModelEntry, shape: Shape) -> None:
    """Refuse a module to serve with parameters that no training makes."""
    with torch.device("meta"):
        trained = entry.build(**shape.sizes).state_dict()
    wrong = [n for n, p in served.named_parameters() if n not in trained or trained[n].shape != p.shape]
    if wrong:
        raise InvalidArgument(
            f"serving.build creates {', '.join(wrong[:5])}, which the trained model lacks or has in another shape; "
            "subclass the trained model to keep its names"
        )


def _filled_anew(values: NDArray[Any], count: int) -> NDArray[Any]:
    """``values`` with other numbers behind the first ``count`` rows: noise, or integers that occur before them."""
    chance = np.random.default_rng(count)
    filled = values.copy()
    shape = values[count:].shape
    if np.issubdtype(values.dtype, np.floating):
        filled[count:] = chance.standard_normal(shape) * max(1.0, float(np.abs(values[:count]).max(initial=0.0)))
    else:
        filled[count:] = chance.choice(values[:count].ravel(), shape)
    return filled


def plain_tensor(value: Any) -> torch.Tensor:
    """Return the torch tensor of a value from a converted model's ``state_dict``."""
    tensor: torch.Tensor = samba.to_torch(value)
    return tensor.detach().clone()


__all__ = ["ModelProgram", "Shape", "plain_tensor", "read_shape"]
