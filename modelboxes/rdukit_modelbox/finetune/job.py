"""A fine-tuning as the verb train of the box ``finetune``: folder and data are inputs, the trained folder an output.

A further attempt continues a dead one's: its prepared data and checkpoints lie next to the output folder.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final

from rdukit.errors import InvalidArgument
from rdukit_modelbox.contract.allowed_values import ParameterValue
from rdukit_modelbox.contract.box import Box, Verb, find_box_file, load_box
from rdukit_modelbox.contract.check_parameters import check_parameters
from rdukit_modelbox.finetune.options import FinetuneOptions
from rdukit_modelbox.finetune.peft_folder import is_peft_folder
from rdukit_modelbox.finetune.run import box_for, finetune
from rdukit_modelbox.preprocessing.columns import split_names
from rdukit_modelbox.verbs.context import Progress, VerbContext, VerbResult

#: Input and output with the Hugging Face folder.
FOLDER: Final = "folder"
#: Input with the data, and that with an adapter's base.
DATA: Final = "data"
BASE: Final = "base"
#: Name of the box.
BOX: Final = "finetune"


def options_of(parameters: Mapping[str, ParameterValue]) -> FinetuneOptions:
    """Return the options that the box's parameters give (pure)."""
    layers = split_names(parameters["lora_layers"])
    names = FinetuneOptions.__dataclass_fields__.keys() - {"lora_layers"}
    given: dict[str, object] = {name: parameters[name] for name in names}
    return FinetuneOptions(**given, lora_layers=layers)  # type: ignore[arg-type]


def parameters_of(options: FinetuneOptions) -> dict[str, ParameterValue]:
    """Return the box's parameters that differ from their defaults (pure)."""
    values = {**asdict(options), "lora_layers": ",".join(options.lora_layers)}
    usual = {**asdict(FinetuneOptions()), "lora_layers": ""}
    return {name: value for name, value in values.items() if value != usual[name]}


def as_the_box_takes(options: FinetuneOptions) -> FinetuneOptions:
    """Return options as the box takes them: locally the values are valid that are valid for a job.

    Raises:
        IllegalValue: one is not; names the box's parameter.
    """
    return options_of(check_parameters(load_box(find_box_file(BOX)), Verb.TRAIN, parameters_of(options)))


def run_finetune(
    context: VerbContext, parameters: Mapping[str, ParameterValue], inputs: Mapping[str, Path], output: Path
) -> VerbResult:
    """Fine-tune the input ``folder`` on the input ``data``; writes ``<output>/folder``.

    Raises:
        InvalidArgument: an adapter comes without its base. Others as ``finetune``.
    """
    folder, base = inputs[FOLDER], inputs.get(BASE)
    if is_peft_folder(folder) and base is None:  # the folder that it names would be one of this machine
        raise InvalidArgument(f"the input {FOLDER} is an adapter; expected its base as the input {BASE}")
    model = ModelContext(context, box_for(folder, base))
    work = output / "work"
    work.mkdir(exist_ok=True)
    made = finetune(folder, inputs[DATA], output / FOLDER, options_of(parameters), model, base, work)
    before = {"held_out_loss_before": made.before["held_out_loss"]} if made.before else {}
    figures = {**before, **made.after, "steps": made.steps, "trained_parameters": made.trained_parameters}
    figures |= {"weight_bytes": made.weight_bytes, "step_bytes": made.step_bytes}
    outputs = {FOLDER: made.folder, "metrics": made.folder / "metrics.jsonl", "report": made.curve}
    return VerbResult(figures, outputs)


class ModelContext:
    """Context of the verbs of the model's own box, which reports to the context of the fine-tuning."""

    def __init__(self, context: VerbContext, box: Box) -> None:
        self._context = context
        self._box = box

    @property
    def box(self) -> Box:
        """Return the model's own box."""
        return self._box

    def progress(self, progress: Progress) -> None:
        """Report the progress of a step."""
        self._context.progress(progress)

    def log(self, text: str) -> None:
        """Write a line to the log."""
        self._context.log(text)

    def check_cancelled(self) -> None:
        """Raise ``Cancelled`` once the fine-tuning was cancelled."""
        self._context.check_cancelled()
