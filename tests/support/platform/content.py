"""Content for a store, made in the test."""

from collections.abc import Iterable
from typing import BinaryIO

from rdukit_platform.artifacts.manifest import FolderEntry
from rdukit_platform.artifacts.store import Content, PendingContent


def add_files(added: PendingContent, files: Iterable[tuple[str, BinaryIO]]) -> Content:
    """Add a folder of files, each with its path in the folder and what it has."""
    entries = []
    for path, stream in files:
        content = added.add_stream(stream)
        entries.append(FolderEntry(path, content.digest, content.bytes))
    return added.add_manifest(entries)
