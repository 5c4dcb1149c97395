"""The service manager's units of a node: text from places. Pure.

Source: runtime reference 2 (the service is called ``snd``, its description), 6.5 (an exporter of its own). The
hardening is ours: what the daemon does not do, it is not allowed to.
"""

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from rdukit.errors import InvalidArgument

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
    """What units depend on."""

    #: Prefix of the vendor's places.
    root: Path
    #: The interpreter that the tools run with.
    python: Path


def snd_unit(places: UnitPlaces) -> str:
    """The unit of the node daemon.

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
    """The unit of the metrics exporter, which only reads and needs no user of its own."""
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
    """A service with a /tmp of its own would not find an installation that lies there."""
    temporary = (Path("/tmp"), Path("/var/tmp"))
    is_hidden = any(path.is_relative_to(folder) for path in (places.root, places.python) for folder in temporary)
    return "" if is_hidden else "PrivateTmp=yes\n"


def _shown(path: Path) -> str:
    """``path`` for a unit: ``%`` doubled, the rest plain.

    Raises:
        InvalidArgument: it is not absolute, or has spaces, quotes, backslashes or control characters.
    """
    text = str(path)
    if not path.is_absolute() or not text.isprintable() or any(letter in " \t\"'\\$;#" for letter in text):
        raise InvalidArgument(
            f"{text!r} cannot stand in a unit; legal: an absolute path without spaces, quotes, backslashes, $, ; and #"
        )
    return text.replace("%", "%%")
