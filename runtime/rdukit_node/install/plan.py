"""Contents of an installation under a prefix: files, folders, systemd units. Pure, except for reading this package's
files.

Source: runtime reference 2, 2.1, 6, 7.1, 8.1 (names and places, the service ``snd``), 6.5 (an exporter of its own);
contents are ours. The units' hardening forbids everything that the daemon does not need.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Final

from rdukit import __version__
from rdukit.errors import InvalidArgument
from rdukit.hardware import NodeSpec
from rdukit.pef.file import FORMAT_VERSION
from rdukit_node.settings import ROOT


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """``is_kept``: an existing file belongs to the administrator, like settings."""

    content: bytes
    mode: int = 0o644
    is_kept: bool = False


@dataclass(frozen=True, slots=True)
class InstallPlan:
    """Paths relative to the prefix. ``folders`` are the plan's folders without files, with their modes."""

    files: Mapping[str, PlannedFile]
    folders: Mapping[str, int] = field(default_factory=dict)


SND_UNIT: Final = "snd.service"
EXPORTER_UNIT: Final = "sambanova_exporter.service"
TOOLS_FOLDER: Final = PurePosixPath("opt/sambaflow/bin")
#: Folders below the prefix that the daemon writes to. ``var`` itself is for ``var/snml.sock``.
_WRITABLE: Final = ("run/sambaflow", "var")
#: Below a prefix of its own the folder is on a disk; in /run it has to be made, and keeps the token over a restart.
_RUN_FOLDER: Final = """\
RuntimeDirectory=sambaflow
RuntimeDirectoryMode=0755
RuntimeDirectoryPreserve=yes
"""

_COMMON: Final = """\
NoNewPrivileges=yes
LockPersonality=yes
PrivateDevices=yes
DevicePolicy=closed
ProtectClock=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectSystem=strict
ProtectHome=read-only
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
KeyringMode=private
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
IPAddressDeny=any
IPAddressAllow=localhost
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
"""


@dataclass(frozen=True, slots=True)
class UnitPlaces:
    """Places that units name."""

    #: Prefix of the vendor's places.
    root: Path
    #: The interpreter that the tools run with.
    python: Path


def snd_unit(places: UnitPlaces) -> str:
    """Return the unit of the node daemon.

    Raises:
        InvalidArgument: a path that no unit can hold.
    """
    settings = _shown(places.root / "opt/sambaflow/etc/config.yaml")
    is_system = places.root == Path("/")
    writable = " ".join(f"-{_shown(places.root / name)}" for name in _WRITABLE)
    return f"""\
# Made by: rdukit node install. Settings: {settings}, or systemctl edit snd.
[Unit]
Description=SN Devices Service (emulated by rdukit)
After=local-fs.target
StartLimitIntervalSec=60
StartLimitBurst=10

[Service]
Type=notify
NotifyAccess=main
ExecStart={_shown(places.root / TOOLS_FOLDER / "snd")}
Restart=on-failure
RestartSec=1
WatchdogSec=30
TimeoutStartSec=60
TimeoutStopSec=15
KillMode=mixed
# Everybody may read the fault database; what is secret has a mode of its own.
UMask=0022
LimitNOFILE=65536
LimitCORE=0
OOMScoreAdjust=-500
{_RUN_FOLDER if is_system else ""}\
# Applications' cgroups are made and removed here; their processes and memory belong to the applications.
Delegate=yes
ProtectControlGroups=no
# The holder of a lease is named by its process: /proc of others is read, other files of theirs are not.
ProtectProc=default
CapabilityBoundingSet=CAP_DAC_OVERRIDE CAP_SYS_NICE
{_private_tmp(places)}\
ReadWritePaths={writable} -/sys/fs/cgroup
{_COMMON}
[Install]
WantedBy=multi-user.target
"""


def exporter_unit(places: UnitPlaces) -> str:
    """Return the unit of the metrics exporter, which only reads and needs no user of its own."""
    return f"""\
# Made by: rdukit node install.
[Unit]
Description=SambaNova metrics exporter (emulated by rdukit)
# It runs without the daemon too, and says then that the node is down.
After={SND_UNIT} network.target

[Service]
Type=exec
ExecStart={_shown(places.root / TOOLS_FOLDER / "sambanova_exporter")}
Restart=on-failure
RestartSec=5
TimeoutStopSec=10
DynamicUser=yes
UMask=0077
LimitCORE=0
CapabilityBoundingSet=
ProtectControlGroups=yes
ProtectProc=invisible
ProcSubset=pid
PrivateUsers=yes
{_private_tmp(places)}\
{_COMMON.replace("IPAddressDeny=any" + chr(10) + "IPAddressAllow=localhost" + chr(10), "")}
[Install]
WantedBy=multi-user.target
"""


def _private_tmp(places: UnitPlaces) -> str:
    """Return the setting for a private /tmp, unless the installation lies there."""
    temporary = (Path("/tmp"), Path("/var/tmp"))
    is_hidden = any(path.is_relative_to(folder) for path in (places.root, places.python) for folder in temporary)
    return "" if is_hidden else "PrivateTmp=yes\n"


def _shown(path: Path) -> str:
    """Return ``path`` for a unit: ``%`` doubled, the rest plain.

    Raises:
        InvalidArgument: it is not absolute, or has spaces, quotes, backslashes or control characters.
    """
    text = str(path)
    if not path.is_absolute() or not text.isprintable() or any(letter in " \t\"'\\$;#" for letter in text):
        raise InvalidArgument(
            f"{text!r} is not valid in a systemd unit; expected an absolute path without spaces, quotes, "
            "backslashes, $, ; and #"
        )
    return text.replace("%", "%%")


#: Command -> module with a ``main``.
TOOLS: Final[Mapping[str, str]] = {
    f"{TOOLS_FOLDER}/snfadm": "rdukit_node.cli.snfadm",
    f"{TOOLS_FOLDER}/snconfig": "rdukit_node.cli.snconfig",
    f"{TOOLS_FOLDER}/sntilestat": "rdukit_node.cli.sntilestat",
    f"{TOOLS_FOLDER}/snddrstat": "rdukit_node.cli.snddrstat",
    f"{TOOLS_FOLDER}/snpciestat": "rdukit_node.cli.snpciestat",
    f"{TOOLS_FOLDER}/snprof": "rdukit_runtime.profile.snprof",
    f"{TOOLS_FOLDER}/sambanova_exporter": "rdukit_node.cli.exporter",
    "opt/sambaflow/slurm/python/slurmfeeder": "rdukit_node.cli.slurmfeeder",
}
CONFIG: Final = "opt/sambaflow/etc/config.yaml"
SOCKET_FOLDER: Final = "run/sambaflow"
LOG_FOLDER: Final = "var/log/sambaflow/runtime"
PYTHON_PACKAGES: Final = "opt/sambanova/lib/python3.8/site-packages"
#: Packages of the vendor's that containers bind, and that have nothing to do on an emulated node.
_EMPTY_PACKAGES: Final = ("pysnrdureset", "pysnrdutools", "sambaruntime")
#: All users of the machine may ask the daemon for tiles.
_SETTINGS: Final = """\
# Settings of this node; the variable RDUKIT_<NAME> and arguments come before them.
platform: {platform}
snd:
  socket_mode: "666"
"""
_EXECUTABLE: Final = 0o755
_FOLDERS: Final[Mapping[str, int]] = {
    SOCKET_FOLDER: 0o755,
    # sn.log is written by the applications of all users.
    LOG_FOLDER: 0o1777,
    "var/lib/sambaflow/snfm": 0o755,
    "dev/hugepages": 0o755,
}


def plan_installation(root: Path, python: Path, node: NodeSpec) -> InstallPlan:
    """Plan everything that belongs under ``root``.

    Raises:
        InvalidArgument: ``root`` or ``python`` cannot stand in a unit.
    """
    places = UnitPlaces(root, python)
    files = {path: PlannedFile(_wrapper(root, python, f"-m {module}"), _EXECUTABLE) for path, module in TOOLS.items()}
    daemon = "-c 'from rdukit.cli import main; main()' node start"
    files[f"{TOOLS_FOLDER}/snd"] = PlannedFile(_wrapper(root, python, daemon), _EXECUTABLE)
    files[CONFIG] = PlannedFile(_SETTINGS.format(platform=node.platform).encode(), is_kept=True)
    files[f"etc/systemd/system/{SND_UNIT}"] = PlannedFile(snd_unit(places).encode())
    files[f"etc/systemd/system/{EXPORTER_UNIT}"] = PlannedFile(exporter_unit(places).encode())
    note = b"Collectives here need no topology database. The file is here for containers that bind it.\n"
    files["var/lib/sambaflow/ccl/ccl_config.db"] = PlannedFile(note)
    files["opt/sambaflow/runtime/VERSION"] = PlannedFile(f"{__version__}\n".encode())
    pef_version = ".".join(str(part) for part in FORMAT_VERSION)
    files["opt/sambaflow/pef/VERSION"] = PlannedFile(f"{pef_version}\n".encode())
    for name, text in snml_package().items():
        files[f"{PYTHON_PACKAGES}/pysnml/{name}"] = PlannedFile(text.encode())
    for name in _EMPTY_PACKAGES:
        words = f"{name} has nothing to do on an emulated node. The folder is here for containers that bind it.\n"
        files[f"{PYTHON_PACKAGES}/{name}/README"] = PlannedFile(words.encode())
    return InstallPlan(files, _FOLDERS)


def snml_package() -> dict[str, str]:
    """Return ``pysnml``: our own messages and stubs under the module names that programs import, with no need of
    rdukit.
    """
    folder = resources.files("rdukit.proto")
    messages = (folder / "snml_pb2.py").read_text()
    stubs = (folder / "snml_pb2_grpc.py").read_text()
    imported = "from rdukit.proto import snml_pb2 as"
    assert imported in stubs, "the generated stubs import the messages"
    return {
        "__init__.py": '"""SNML of an emulated node: rdukit\'s own messages. Needs grpcio and protobuf."""\n',
        "snml_rpc_pb2.py": messages,
        "snml_rpc_pb2_grpc.py": stubs.replace(imported, "from pysnml import snml_rpc_pb2 as"),
        "snml.proto": (folder / "snml.proto").read_text(),
    }


def _wrapper(root: Path, python: Path, arguments: str) -> bytes:
    """Return a script that runs this installation's Python. ``-P`` excludes code in the user's current folder."""
    config = shlex.quote(str(root / CONFIG))
    return f"""\
#!/bin/sh
# Made by: rdukit node install.
: "${{{ROOT.variable}:={root}}}"
export {ROOT.variable}
if [ -z "${{RDUKIT_CONFIG:-}}" ] && [ -r {config} ]; then
    export RDUKIT_CONFIG={config}
fi
exec {shlex.quote(str(python))} -P {arguments} "$@"
""".encode()
