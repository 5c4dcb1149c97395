"""``rdukit finetune --job``: check a fine-tuning here, run it on the platform, and fetch the trained folder.

The platform is used through its own commands, as other parts do not import it. A note in the home has the job's id, so
that the same command follows the same job.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import click

from rdukit.errors import Cancelled, Conflict, RdukitError, error_from_body
from rdukit.files.atomic import sha256_of, write_json_atomic
from rdukit.settings import home_folder
from rdukit_modelbox.finetune.job import BASE, BOX, DATA, FOLDER, parameters_of
from rdukit_modelbox.finetune.options import FinetuneOptions
from rdukit_modelbox.finetune.run import Finetuned, box_for, check_finetune, read_finetuned

if TYPE_CHECKING:
    from rdukit_modelbox.cli.call import ProgressBars
    from rdukit_modelbox.contract.box import Box
    from rdukit_modelbox.verbs.context import Progress

_RDUKIT: Final = (sys.executable, "-c", "from rdukit.cli import main; main()")
#: States of a job that the same command replaces by a new one.
_GIVEN_UP: Final = frozenset({"failed", "cancelled"})


def finetune_on_platform(
    folder: Path, data: Path, output: Path, options: FinetuneOptions, bars: "ProgressBars", base: Path | None = None
) -> Finetuned:
    """Run a fine-tuning as a job, fetch the trained folder to ``output``, and return its figures.

    Raises:
        NotFound, InvalidArgument: as ``check_finetune``; nothing was sent then.
        Conflict: ``output`` exists.
        Cancelled: the job was cancelled.
        RdukitError: the job failed; the error's code determines the class.
        SystemExit: a command failed and printed the reason.
    """
    if output.exists():
        raise Conflict(f"{output} exists already; name another folder with --output, or remove it")
    note = home_folder() / BOX / f"{_digest(folder, data, output, options, base)}.json"
    job = _known_job(note)
    if job is None:
        bars.log("checking folder and data before the upload")
        context = _CheckContext(box_for(folder, base), bars)
        base = check_finetune(folder, data, options, context, base)
        job = _submit({FOLDER: folder, DATA: data, **({BASE: base} if base else {})}, options, bars)
        write_json_atomic(note, {"job": job})
    bars.log(f"{job} runs on the platform; follow its curve in the console, or with: rdukit job metrics {job}")
    _follow(job, bars)
    found = _ask("job", "show", job)
    if found["state"] != "succeeded":
        raise _failure(found)
    _run("artifact", "get", found["outputs"][FOLDER], "--output", str(output))
    note.unlink(missing_ok=True)
    return read_finetuned(output)


def _digest(folder: Path, data: Path, output: Path, options: FinetuneOptions, base: Path | None) -> str:
    """Return a digest of a request: paths, with sizes and times of their files, and options."""
    stamps = [
        [str(path.relative_to(root)), path.stat().st_size, path.stat().st_mtime_ns]
        for root in (folder, data, *([base] if base else []))
        for path in ([root] if root.is_file() else sorted(root.rglob("*")))
        if path.is_file()
    ]
    about = [str(folder.resolve()), str(data.resolve()), str(output.resolve()), stamps, asdict(options)]
    return sha256_of(json.dumps(about).encode())[:32]


def _known_job(note: Path) -> str | None:
    """Return the job that the same command has submitted, unless it failed, was cancelled or is gone."""
    if not note.is_file():
        return None
    job = str(json.loads(note.read_text())["job"])
    done = subprocess.run([*_RDUKIT, "job", "show", job, "--json"], capture_output=True, text=True, check=False)
    return job if done.returncode == 0 and json.loads(done.stdout)["state"] not in _GIVEN_UP else None


def _submit(inputs: Mapping[str, Path], options: FinetuneOptions, bars: "ProgressBars") -> str:
    given: list[str] = []
    for slot, path in inputs.items():
        bars.log(f"sending {path}")
        with _plain_tree(path) as sent:
            kind = "dataset" if slot == DATA else "model"
            added = _ask("artifact", "add", str(sent), "--kind", kind, "--name", path.resolve().name)
        given += ["--input", f"{slot}={added['id']}"]
    for name, value in parameters_of(options).items():
        given += ["--set", f"{name}={value}"]
    title = f"fine-tune {inputs[FOLDER].resolve().name}"[:100]
    return str(_ask("job", "submit", BOX, "train", "--name", title, *given)["id"])


@contextmanager
def _plain_tree(path: Path) -> Iterator[Path]:
    """Yield a folder without links and hidden files, which the platform takes; a file and such a folder are their own.

    Folders of the hub's cache have links to files elsewhere.
    """
    if path.is_file() and not path.is_symlink():
        yield path
        return
    files = [path] if path.is_file() else [each for each in sorted(path.rglob("*")) if each.is_file()]
    with TemporaryDirectory(prefix="rdukit-finetune-") as name:
        target = Path(name) / path.name
        for each in files:
            place = Path() if path.is_file() else each.relative_to(path)
            if any(part.startswith(".") for part in place.parts):
                continue
            (target / place).parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(each.resolve(), target / place)
            except OSError:  # another file system, or not the owner
                shutil.copyfile(each, target / place)
        yield target


def _follow(job: str, bars: "ProgressBars") -> None:
    """Show a job's progress and log until it ends. Ctrl-C ends this command only."""
    try:
        with subprocess.Popen([*_RDUKIT, "job", "watch", job, "--json"], stdout=subprocess.PIPE, text=True) as watch:
            assert watch.stdout is not None
            for line in watch.stdout:
                event = json.loads(line)
                if event["kind"] == "progress":
                    bars.tell(event["data"])
                elif event["kind"] == "log":
                    bars.log(str(event["data"].get("line", "")))
    except KeyboardInterrupt:
        click.echo(
            f"{job} continues; the same command follows it again; to cancel it: rdukit job cancel {job}", err=True
        )
        raise


def _failure(found: Mapping[str, Any]) -> RdukitError:
    error = found["error"] or {}
    words = f"job {found['id']} is {found['state']} ({found['reason']})"
    words += f": {error['message']}" if error.get("message") else f"; {found['advice']}" if found["advice"] else ""
    if found["state"] == "cancelled":
        return Cancelled(words, job=found["id"])
    return error_from_body({"error": {"code": error.get("code"), "message": words, "detail": {"job": found["id"]}}})


def _ask(*words: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(_run(*words, "--json"))
    return answer


def _run(*words: str) -> str:
    """Run a command, whose errors go to stderr; returns its output."""
    done = subprocess.run([*_RDUKIT, *words], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    return done.stdout


class _CheckContext:
    """Context of the verbs that check data here; Ctrl-C raises ``KeyboardInterrupt``, as nothing was sent yet."""

    def __init__(self, box: "Box", bars: "ProgressBars") -> None:
        self._box = box
        self._bars = bars

    @property
    def box(self) -> "Box":
        """Return the model's own box."""
        return self._box

    def progress(self, progress: "Progress") -> None:
        """Show the progress of the check."""
        self._bars.tell(progress.to_json(), "check: ")

    def log(self, text: str) -> None:
        """Print a line above the bars."""
        self._bars.log(text)

    def check_cancelled(self) -> None:
        """Do nothing."""
