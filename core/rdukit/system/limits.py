"""Limits that a process sets on itself before it reads a stranger's input, and cannot lift."""

import resource


def limit_this_process(memory_bytes: int) -> None:
    """Limit memory beyond what the process has now, open files, sizes of files, and core dumps."""
    with open("/proc/self/statm", "rb") as statm:
        there = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (there + memory_bytes, there + memory_bytes))
    resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))  # Python imports some modules when it first needs them
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
