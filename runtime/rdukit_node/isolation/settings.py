"""Settings of isolation."""

from typing import Final

from rdukit.settings import Setting, parse_bool

MODE: Final = Setting(
    "isolation.mode",
    "auto",
    "Isolation of a program that leases from the daemon: auto applies what the machine allows, strict refuses to run "
    "if a part cannot be applied, off applies nothing.",
    str,
    legal=("auto", "off", "strict"),
)
CORES: Final = Setting("isolation.cores", False, "Bind a program to its tiles' share of the host's cores.", parse_bool)
DEBUGGABLE: Final = Setting(
    "isolation.debuggable",
    True,
    "Whether other processes of the same user, outside any lease, may inspect a program (debuggers, profilers).",
    parse_bool,
)
WRITABLE: Final = Setting(
    "isolation.writable",
    "",
    "Folders, separated by colons, outside which a program may not write (besides the home folder, the temporary "
    "folder and devices); empty: no such limit.",
    str,
)
CGROUP: Final = Setting(
    "isolation.cgroup",
    "auto",
    "Control groups that the daemon makes for applications: auto where it may, or off.",
    str,
    legal=("auto", "off"),
)
PIDS: Final = Setting(
    "isolation.pids", 4096, "Processes and threads that one application may have, by control group; 0: no limit.", int
)
MEMORY_BYTES: Final = Setting(
    "isolation.memory_bytes", 0, "Host memory that one application may use, by control group; 0: no limit.", int
)

ISOLATION_SETTINGS: Final = (MODE, CORES, DEBUGGABLE, WRITABLE, CGROUP, PIDS, MEMORY_BYTES)
