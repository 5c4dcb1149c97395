"""What an installation under a prefix consists of: files, folders, contents. Pure; it reads this package's own files.

Source: runtime reference 2, 2.1, 6, 7.1, 8.1 (names and places); contents are ours.
"""

import shlex
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Final

from rdukit import __version__
from rdukit.hardware import NodeSpec
from rdukit.pef.file import FORMAT_VERSION
from rdukit_node.install.planned_files import Plan, PlannedFile
from rdukit_node.install.service_units import EXPORTER_UNIT, SND_UNIT, TOOLS_FOLDER, UnitPlaces, exporter_unit, snd_unit
from rdukit_node.settings import ROOT

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


def plan_installation(root: Path, python: Path, node: NodeSpec) -> Plan:
    """Everything that belongs under ``root``.

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
    return Plan(files, _FOLDERS)


def snml_package() -> dict[str, str]:
    """``pysnml``: our own messages and stubs under the module names that programs import, with no need of rdukit."""
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
    """A script that runs this installation's Python. ``-P``: never code from the folder where a user happens to be."""
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
