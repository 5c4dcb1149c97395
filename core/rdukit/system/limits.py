"""Limits of a process that reads a stranger's input: its environment, and what it sets on itself and cannot lift."""

import os
import resource
from typing import Final

#: Variables without which a process of ours does not start, or writes texts and times in another form.
_VARIABLES: Final = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ", "TMPDIR")


def small_environment() -> dict[str, str]:
    """Return the environment for such a process: a server's own may hold tokens and keys."""
    return {name: os.environ[name] for name in _VARIABLES if name in os.environ}


def limit_this_process(memory_bytes: int) -> None:
    """Limit memory beyond what the process has now, open files, sizes of files, and core dumps."""
    with open("/proc/self/statm", "rb") as statm:
        there = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (there + memory_bytes, there + memory_bytes))
    resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))  # Python imports some modules when it first needs them
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
