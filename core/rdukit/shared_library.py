"""Loading libraries that were just made: from memory, so that no folder need be one that programs may run from."""

import ctypes
import os


def load_library(library: bytes, name: str) -> ctypes.CDLL:
    """The library, loaded from memory; ``name`` is what the process's maps call it.

    Folders for temporary files are often mounted ``noexec``, in containers above all, and nothing there can be loaded.

    Raises:
        OSError: it is no library, or one that this process cannot load.
    """
    # The descriptor stays open: the system's loader takes a path that it has seen for the library it knows.
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    with os.fdopen(os.dup(descriptor), "wb") as stream:
        stream.write(library)
    return ctypes.CDLL(f"/proc/self/fd/{descriptor}")
