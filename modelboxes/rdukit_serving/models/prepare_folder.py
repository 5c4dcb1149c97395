"""A Hugging Face folder → files that can be served, by a program of its own: a server imports nothing that compiles.

The first start serves a PEF without native kernels, which is there soon. ``KernelBuild`` builds them meanwhile.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

import rdukit
from rdukit.files.atomic import sha256_of
from rdukit.files.home import make_folder
from rdukit.pef.checkpoint_files import LATEST
from rdukit.settings import KERNELS, home_folder, resolve

#: Program that compiles and converts; its last line is a ``PreparedModel`` as JSON.
PROGRAM: Final = "rdukit_modelbox.artifacts.hub_folder"
PREPARED: Final = "prepared.json"
#: Said once a model is served whose native kernels are built meanwhile.
BUILDS_KERNELS: Final = "native kernels are being built; the server takes them as soon as they are there"


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """A model that can be served: its box, its name in requests, and paths of the PEF and the checkpoint.

    ``native_pef`` is the path at which a build puts the same PEF with native kernels; "" if ``pef`` has what it gets.
    """

    box: str
    name: str
    pef: str
    checkpoint: str
    native_pef: str = ""

    @property
    def best_pef(self) -> Path:
        """Return the PEF with native kernels where it exists, else the one without."""
        return Path(self.pef if self.kernels_to_build else self.native_pef or self.pef)

    @property
    def kernels_to_build(self) -> dict[Path, Path]:
        """Return the PEF whose native kernels are not built yet, and the path of the PEF that will have them."""
        return {Path(self.pef): Path(self.native_pef)} if self.native_pef and not Path(self.native_pef).exists() else {}


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
    """Compile and convert a Hugging Face folder in a child process; kept results are found again without one.

    Args:
        context: largest number of tokens of a text; None: the usual number. precision: ``auto``, ``bf16`` or ``f32``.
    Raises:
        click.exceptions.Exit: the program failed, and printed the reason to stderr.
    """
    place = home_folder() / "cache" / "huggingface"
    made = prepared_place(Path(folder), place, context, precision)
    found = find_prepared(made)
    if found is not None:
        return found
    make_folder(place)
    command = [sys.executable, "-m", PROGRAM, str(os.getpid()), str(folder), str(made), precision]
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


def find_prepared(made: Path) -> PreparedModel | None:
    """Return the model that ``prepared_place`` holds; None if it is not complete."""
    try:
        found = PreparedModel(**json.loads((made / PREPARED).read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return found if Path(found.pef).is_file() else None


def prepared_place(folder: Path, place: Path, context: int | None, precision: str) -> Path:
    """Return the folder below ``place`` for a Hugging Face folder with these options.

    Its name is a digest of the folder's files (name, size and time), the options, the setting of kernels and this
    version.
    """
    known = [(str(path.relative_to(folder)), status.st_size, status.st_mtime_ns) for path, status in _files_of(folder)]
    asked = [context, precision, resolve(KERNELS)]
    about = json.dumps([str(folder.resolve()), known, asked, rdukit.__version__], sort_keys=True)
    return place / sha256_of(about.encode())[:24]


def _files_of(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the files of the folder and of the folders in it, sorted."""
    for path in sorted([*folder.glob("*"), *folder.glob("*/*")]):
        if path.is_file():
            yield path, path.stat()


def all_to_build(*made: PreparedModel) -> Mapping[Path, Path]:
    """Return ``kernels_to_build`` of several models."""
    return {pef: native for model in made for pef, native in model.kernels_to_build.items()}
