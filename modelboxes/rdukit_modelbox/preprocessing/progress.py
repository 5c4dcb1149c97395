"""Progress of a preprocess: its rate, digests of its sources, and notes of finished steps to resume from."""

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rdukit.files.atomic import sha256_of, sha256_of_file, write_json_atomic
from rdukit_modelbox.preprocessing.sources import SourceFile
from rdukit_modelbox.verbs.context import Progress, VerbContext

#: Bytes are reported in units of this many; larger numbers might exceed the wires' integers.
KILOBYTE: Final = 1024


class ProgressReporter:
    """Reports the progress of one stage in bytes, or in another unit, of ``total``."""

    def __init__(self, context: VerbContext, stage: str, total: int, unit: int = 1) -> None:
        self._unit = unit
        self._context = context
        self._stage = stage
        self._total = max(total, 1)
        self._began = time.perf_counter()
        self._skipped = 0
        self._counted = 0

    def skip(self, amount: int) -> None:
        """Count an ``amount`` that an earlier attempt did."""
        self._skipped += amount

    def count(self, rows: int) -> None:
        """Report that ``rows`` more rows are done in a stage that counts rows.

        Raises:
            Cancelled: somebody cancelled the operation.
        """
        self._counted += rows
        self.tell(self._skipped + self._counted, self._counted)

    def tell(self, done: int, rows: int) -> None:
        """Report that ``done`` of the stage is done, and ``rows`` in this attempt. Also look for a cancellation.

        Raises:
            Cancelled: somebody cancelled the operation.
        """
        self._context.check_cancelled()
        done = min(done, self._total)
        elapsed = max(time.perf_counter() - self._began, 1e-9)
        handled = done - self._skipped
        self._context.progress(
            Progress(
                self._stage, done // self._unit, max(self._total // self._unit, 1), throughput=rows / elapsed,
                eta_s=elapsed / handled * (self._total - done) if handled else None,
            )
        )  # fmt: skip


@contextmanager
def digests_meanwhile(sources: Sequence[SourceFile]) -> Iterator[Callable[[], list[str]]]:
    """Read the sources in a thread while the block runs; the yielded function returns their SHA-256 in order."""
    with ThreadPoolExecutor(1, thread_name_prefix="digest") as thread:
        digests = [thread.submit(sha256_of_file, source.path) for source in sources]
        try:
            yield lambda: [digest.result() for digest in digests]
        except BaseException:
            thread.shutdown(wait=False, cancel_futures=True)
            raise


IDENTITY: Final = "identity.json"
VERSION: Final = 1


class WorkFolder:
    """A folder next to the output; its content is thrown away if it belongs to another request.

    Steps write their files first and ``finish`` last, so a step without its note is done again from the start.
    """

    def __init__(self, folder: Path, request: Mapping[str, object]) -> None:
        """``request``: all that the result depends on; only things that JSON holds."""
        self.folder = folder
        self.identity = identity_of(request)
        if self._note(IDENTITY) != {"identity": self.identity}:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            write_json_atomic(folder / IDENTITY, {"identity": self.identity})

    def find(self, step: str) -> dict[str, Any] | None:
        """Return the note of the finished ``step``; None if it is not finished."""
        return self._note(f"{step}.json")

    def finish(self, step: str, note: Mapping[str, object]) -> None:
        """Record that ``step`` is finished."""
        write_json_atomic(self.folder / f"{step}.json", note)

    def fresh(self, name: str) -> Path:
        """Return a path below the folder at which nothing is."""
        path = self.folder / name
        shutil.rmtree(path, ignore_errors=True)
        return path

    def hand_over(self, name: str, target: Path) -> None:
        """Replace ``target`` by the file or folder ``name``, then remove this folder."""
        if target.exists():
            target.rename(self.fresh("replaced"))
        (self.folder / name).rename(target)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _note(self, name: str) -> dict[str, Any] | None:
        try:
            value = json.loads((self.folder / name).read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        return value if isinstance(value, dict) else None


def identity_of(request: Mapping[str, object]) -> str:
    """SHA-256 that stands for a request."""
    return sha256_of(json.dumps({"version": VERSION, **request}, sort_keys=True).encode())
