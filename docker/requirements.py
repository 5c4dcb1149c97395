"""Print the distribution's requirements without some of them: ``requirements.py pyproject.toml torch numpy``.

With ``--only`` it prints only those named: ``requirements.py --only pyproject.toml click PyYAML``.
With ``--extras s3,otlp`` it prints what these add as well.
With ``--installed LOCK`` it looks instead whether all that the running interpreter has is in the lock: what came by a
requirement that the lock does not know was not compared with any hash. An empty lock asks for nothing.
"""

import argparse
import re
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import distributions
from pathlib import Path

#: Not in the lock: ourselves, what makes environments, and torch with what its build needs.
UNLOCKED = re.compile(r"rdukit|pip|setuptools|wheel|torch|triton|(nvidia|cuda)-.*")


def requirements(pyproject: Path, names: set[str], is_only: bool = False) -> list[str]:
    """The requirements of ``pyproject`` whose names are not in ``names``; with ``is_only`` those that are."""
    listed: list[str] = tomllib.loads(pyproject.read_text())["project"]["dependencies"]
    return [text for text in listed if (re.split(r"[^A-Za-z0-9._-]", text)[0].lower() in names) == is_only]


def added(pyproject: Path, extras: str) -> list[str]:
    """The requirements that extras add; their names have commas between, and none add nothing."""
    listed: dict[str, list[str]] = tomllib.loads(pyproject.read_text())["project"]["optional-dependencies"]
    names = [name for name in extras.split(",") if name]
    if unknown := sorted(set(names) - set(listed)):
        raise SystemExit(f"no extra {', '.join(unknown)}; expected {', '.join(listed)}")
    return [text for name in names for text in listed[name]]


def strangers(installed: Iterable[tuple[str, str]], lock: str) -> list[str]:
    """What of ``installed`` (names and versions) the lock does not have."""
    # A package may be there in several versions, for several versions of Python.
    locked = {(normal(name), version) for name, version in re.findall(r"^([\w.-]+)==([^\s;]+)", lock, re.M)}
    found = sorted((normal(name), version) for name, version in installed)
    return [
        f"{name} {version}" for name, version in found
        if locked and not UNLOCKED.fullmatch(name) and (name, version) not in locked
    ]  # fmt: skip


def normal(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--installed"]:
        unknown = strangers(((d.metadata["Name"], d.version) for d in distributions()), Path(sys.argv[2]).read_text())
        sys.exit(f"not in {sys.argv[2]}: {', '.join(unknown)}; run: make lock" if unknown else 0)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="store_true", help="print those named instead of the others")
    parser.add_argument("--extras", default="", help="print what these add as well, with commas between")
    parser.add_argument("pyproject", type=Path)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    chosen = requirements(arguments.pyproject, {name.lower() for name in arguments.names}, arguments.only)
    print("\n".join(chosen + added(arguments.pyproject, arguments.extras)))
