"""A record of what a process asks of its disk, by which a test knows what a power failure may leave."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rdukit.files import durable


@dataclass
class DiskRecord:
    """What was asked of the disk, and what it has for certain. A name may be on it as soon as it was given."""

    #: Whether a file system is synced as a whole.
    is_whole: bool
    #: Files whose bytes the disk has, by device and inode, and paths it has the names of.
    written: set[tuple[int, int]] = field(default_factory=set)
    named: set[str] = field(default_factory=set)
    #: Paths that got their names, in order, and those of them that had no bytes on the disk.
    placed: list[str] = field(default_factory=list)
    hollow: list[str] = field(default_factory=list)
    waits: int = 0
    #: Files are waited for by several threads.
    counting: threading.Lock = field(default_factory=threading.Lock)
    #: Errors that the next ``fsync`` of a file has, by a part of its path.
    refusals: dict[str, OSError] = field(default_factory=dict)

    def sync(self, descriptor: int) -> None:
        """Note ``fsync`` of a file, or of a folder, which is the names in it."""
        with self.counting:
            self.waits += 1
        found, path = os.fstat(descriptor), os.readlink(f"/proc/self/fd/{descriptor}")
        for part in [part for part in self.refusals if part in path]:
            raise self.refusals.pop(part)
        self.written.add((found.st_dev, found.st_ino))
        self.named.update(each for each in self.placed if os.path.dirname(each) == path)

    def sync_all(self, top: Path) -> None:
        """Note ``syncfs``."""
        self.waits += 1
        for path in top.rglob("*"):
            found = path.lstat()
            self.written.add((found.st_dev, found.st_ino))
        self.named.update(self.placed)

    def place(self, found: os.stat_result, target: str) -> None:
        """Note that a file has got a name: what had it may be gone."""
        self.placed.append(target)
        self.named.discard(target)
        if (found.st_dev, found.st_ino) not in self.written:
            self.hollow.append(target)


@contextmanager
def recorded_disk(top: Path, patch: pytest.MonkeyPatch, *, is_whole: bool) -> Iterator[DiskRecord]:
    """Record what this process asks of the disk below a folder."""
    record = DiskRecord(is_whole)
    fsync, replace = os.fsync, os.replace

    def sync(descriptor: int) -> None:
        record.sync(descriptor)
        fsync(descriptor)

    def sync_all(descriptor: int) -> bool:
        if is_whole:
            record.sync_all(top)
        return is_whole

    def place(source: Any, target: Any, **folders: Any) -> None:
        found = os.stat(source)
        replace(source, target, **folders)
        if str(target).startswith(f"{top}/"):
            record.place(found, str(target))

    with patch.context() as patched:
        patched.setattr(os, "fsync", sync)
        patched.setattr(os, "replace", place)
        patched.setattr(durable, "_sync_whole", sync_all)
        yield record
