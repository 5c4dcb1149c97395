"""The sources' digests, made on another core while they are read."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from rdukit.files.atomic import sha256_of_file
from rdukit_modelbox.preprocessing.sources import SourceFile


@contextmanager
def digests_meanwhile(sources: Sequence[SourceFile]) -> Iterator[Callable[[], list[str]]]:
    """While the block runs a thread reads the sources; call what it yields for their SHA-256, in their order."""
    with ThreadPoolExecutor(1, thread_name_prefix="digest") as thread:
        digests = [thread.submit(sha256_of_file, source.path) for source in sources]
        try:
            yield lambda: [digest.result() for digest in digests]
        except BaseException:
            thread.shutdown(wait=False, cancel_futures=True)
            raise
