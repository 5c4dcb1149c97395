"""``rdukit finetune``: a Hugging Face folder and data in, a trained folder out."""

import json
import signal
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from rdukit.cli.commands import JSON_OPTION
from rdukit.errors import Cancelled
from rdukit.units import format_bytes, plain

if TYPE_CHECKING:
    from rdukit_modelbox.cli.call import ProgressBars
    from rdukit_modelbox.contract.box import Box
    from rdukit_modelbox.finetune.run import Finetuned
    from rdukit_modelbox.verbs.context import Progress

_PATH: Final = click.Path(path_type=Path)


@click.command()
@click.argument("folder", metavar="FOLDER", type=_PATH)
@click.argument("data", metavar="DATA", type=_PATH)
@click.option("--output", type=_PATH, required=True, help="Folder for the trained model.")
@click.option("--lora", type=click.IntRange(0, 1024), default=0, metavar="RANK",
              help="Train LoRA updates of this rank and freeze the weights [default: 0, train all "
                  "weights].")  # fmt: skip
@click.option("--lora-alpha", type=click.FloatRange(0), default=0.0,
              help="LoRA alpha: updates are multiplied by alpha divided by rank [default: 16, or the "
                  "adapter's].")  # fmt: skip
@click.option("--lora-layers", default="", metavar="NAME,…",
              help="Layers with updates, by the ends of their names [default: all linear layers except "
                  "heads].")  # fmt: skip
@click.option("--base-precision", type=click.Choice(["f32", "bf16", "int8", "int4"]), default="f32",
              show_default=True, help="Precision of the frozen base weights with --lora.")  # fmt: skip
@click.option(
    "--base", type=_PATH, help="Folder of the model that an adapter belongs to [default: from adapter_config.json]."
)
@click.option(
    "--context", type=click.IntRange(2), default=512, show_default=True, help="Largest number of tokens in a sequence."
)
@click.option("--batch", type=click.IntRange(1, 1024), default=8, show_default=True, help="Sequences of a step.")
@click.option("--epochs", type=click.IntRange(1, 100), default=1, show_default=True, help="Passes over the data.")
@click.option(
    "--max-steps",
    type=click.IntRange(0),
    default=0,
    help="Number of steps after which training stops [default: all epochs].",
)
@click.option("--lr", type=click.FloatRange(0, 1), default=0.0,
              help="Learning rate, which decreases linearly to 0 [default: 5e-5, with --lora 2e-4].")  # fmt: skip
@click.option("--warmup", type=click.IntRange(0), default=0, help="Number of steps in which the learning rate rises.")
@click.option("--held-out", type=click.FloatRange(0, 0.5), default=0.05, show_default=True,
              help="Share of the records on which the model is evaluated before and after training.")  # fmt: skip
@click.option("--beta", type=click.FloatRange(0, 10, min_open=True), default=0.1, show_default=True,
              help="For preference pairs: strength with which the model is kept close to its start.")  # fmt: skip
@click.option("--accumulate", type=click.IntRange(1, 1024), default=1, show_default=True,
              help="Number of batches whose gradients are added in a step.")  # fmt: skip
@click.option("--ema", type=click.FloatRange(0, 1, max_open=True), default=0.0, metavar="DECAY",
              help="Evaluate and write a moving average of the weights with this decay [default: 0, "
                  "none].")  # fmt: skip
@click.option("--layer-decay", type=click.FloatRange(0, 1, min_open=True), default=1.0, show_default=True,
              help="Ratio of a layer's learning rate to that of the next layer.")  # fmt: skip
@click.option("--augment", default="", metavar="NAME=N,…",
              help="Augment training pictures by flip, shift, crop, rotation and colour, such as "
                  "flip=0.5,crop=0.2.")  # fmt: skip
@click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Seed of all random orders."
)
@click.option("--job", "as_job", is_flag=True, help="Train as a job of the platform, and fetch the trained folder.")
@JSON_OPTION
def finetune(
    folder: Path, data: Path, output: Path, lora: int, lora_alpha: float, lora_layers: str, base_precision: str,
    base: Path | None,
    context: int, batch: int, epochs: int, max_steps: int, lr: float, warmup: int, held_out: float, beta: float,
    accumulate: int, ema: float, layer_decay: float, augment: str, seed: int, as_job: bool, as_json: bool,
) -> None:  # fmt: skip
    """Train the model of a Hugging Face folder on texts, completions, chats, preferences, or labelled data.

    FOLDER may be a PEFT adapter, which trains on. OUTPUT becomes a folder that transformers and rdukit serve read.
    Ctrl-C stops; the same command continues. A job continues without this command, and the same command follows it.

    Example: rdukit finetune ~/models/my-llama talks.jsonl --lora 8 --output ~/models/my-llama-talks

    Example: rdukit finetune ~/models/my-bert reviews.csv --epochs 2 --output ~/models/reviews
    """
    from rdukit_modelbox.cli.call import ProgressBars
    from rdukit_modelbox.finetune.job import as_the_box_takes
    from rdukit_modelbox.finetune.options import FinetuneOptions
    from rdukit_modelbox.finetune.run import box_for
    from rdukit_modelbox.finetune.run import finetune as run
    from rdukit_modelbox.preprocessing.columns import split_names

    asked = FinetuneOptions(
        lora, lora_alpha, split_names(lora_layers), base_precision, context, batch, epochs, max_steps, lr, warmup,
        held_out, seed, beta, accumulate, ema, layer_decay, augment,
    )  # fmt: skip
    options = as_the_box_takes(asked)
    with ProgressBars(is_quiet=as_json) as bars:
        if as_job:
            from rdukit_modelbox.cli.finetune_job import finetune_on_platform

            made = finetune_on_platform(folder, data, output, options, bars, base)
        else:
            made = run(folder, data, output, options, TerminalContext(box_for(folder, base), bars), base)
    if as_json:
        click.echo(json.dumps({**asdict(made), "folder": str(made.folder)}, default=str, indent=2))
        return
    for line in result_lines(made):
        click.echo(line)


def result_lines(made: "Finetuned") -> list[str]:
    """Return the lines that the command prints about a fine-tuning (pure)."""
    rows = [("steps", f"{made.steps:,}"), ("trained parameters", f"{made.trained_parameters:,}")]
    rows += [(name, f"{plain(value)} before, {plain(made.after[name])} after") for name, value in made.before.items()]
    rows += [
        ("memory", f"{format_bytes(made.step_bytes)} in a step, of which {format_bytes(made.weight_bytes)} are weights")
    ]
    rows += [("folder", str(made.folder)), *([("adapter", str(made.adapter))] if made.adapter else [])]
    rows += [("curve", str(made.curve)), ("serve it", f"rdukit serve {made.folder}")]
    width = max(len(name) for name, _ in rows)
    return [f"{name:<{width}}  {value}" for name, value in rows]


class TerminalContext:
    """Context of verbs that run in the terminal's own process; SIGINT and SIGTERM stop them between two steps."""

    def __init__(self, box: "Box", bars: "ProgressBars") -> None:
        """Take over both signals for the rest of the process."""
        self._box, self._bars = box, bars
        self._is_cancelled = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: self._cancel())

    @property
    def box(self) -> "Box":
        """The box whose verbs run."""
        return self._box

    def progress(self, progress: "Progress") -> None:
        """Show the progress."""
        self._bars.tell(progress.to_json())

    def log(self, text: str) -> None:
        """Print a line above the bars."""
        self._bars.log(text)

    def check_cancelled(self) -> None:
        """Raise ``Cancelled`` after a signal."""
        if self._is_cancelled:
            raise Cancelled("stopped; the same command continues from the last checkpoint")

    def _cancel(self) -> None:
        self._is_cancelled = True


@click.command("merge")
@click.argument("adapter", type=_PATH)
@click.argument("target", type=_PATH)
@click.option(
    "--base", type=_PATH, help="Folder of the model that the adapter belongs to [default: from adapter_config.json]."
)
def merge(adapter: Path, target: Path, base: Path | None) -> None:
    """Add an adapter to the weights of its base, and write a Hugging Face folder.

    ADAPTER is a folder of PEFT, or a checkpoint of a training with lora_rank, which needs --base.

    Example: rdukit checkpoint merge my-adapter merged

    Example: rdukit checkpoint merge my-adapter merged --base ~/models/my-llama
    """
    from rdukit_modelbox.finetune.export import merge_folder

    hub, layers = merge_folder(adapter, target, base)
    click.echo(f"wrote {target}: {hub.entry.name} of {hub.path} with the updates of {layers} layers")
