"""A Hugging Face folder → files that can be served, by a program of its own: a server imports nothing that compiles."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from rdukit.files.home import make_folder
from rdukit.pef.checkpoint_files import LATEST
from rdukit.settings import home_folder

#: Program that compiles and converts; its last line is a ``PreparedModel`` as JSON.
PROGRAM: Final = "rdukit_modelbox.artifacts.hub_folder"


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """A model that can be served: its box, its name in requests, and paths of the PEF and the checkpoint."""

    box: str
    name: str
    pef: str
    checkpoint: str


#: Options of commands that serve a folder.
context_option = click.option(
    "--context",
    type=click.IntRange(2, 1 << 20),
    help="Largest number of tokens in a text for a Hugging Face folder [default: 2048 to generate, 128 for vectors "
    "and classes].",
)
precision_option = click.option(
    "--precision",
    type=click.Choice(["auto", "bf16", "f32"]),
    default="auto",
    show_default=True,
    help="Precision for a Hugging Face folder's model; auto: bf16 to generate, f32 for vectors and classes.",
)


def is_hub_folder(path: Path) -> bool:
    """Return whether the path is a folder of ``save_pretrained``, and not a box's checkpoint."""
    return (path / "config.json").is_file() and not (path / LATEST).is_file()


def prepare_folder(folder: Path | str, context: int | None, precision: str) -> PreparedModel:
    """Compile and convert a Hugging Face folder in a child process; kept results are found again.

    Args:
        context: largest number of tokens of a text; None: the usual number. precision: ``auto``, ``bf16`` or ``f32``.
    Raises:
        click.exceptions.Exit: the program failed, and printed the reason to stderr.
    """
    place = home_folder() / "cache" / "huggingface"
    make_folder(place)
    command = [sys.executable, "-m", PROGRAM, str(os.getpid()), str(folder), str(place), precision]
    command += [] if context is None else [str(context)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            output, _ = process.communicate()
        except BaseException:  # Ctrl-C, above all, which does not reach its session
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        raise click.exceptions.Exit(process.returncode)
    return PreparedModel(**json.loads(output.splitlines()[-1]))
