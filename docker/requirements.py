"""Print the distribution's requirements without some of them: ``requirements.py pyproject.toml torch numpy``.

With ``--only`` it prints only those named: ``requirements.py --only pyproject.toml click PyYAML``.
"""

import argparse
import re
import tomllib
from pathlib import Path


def requirements(pyproject: Path, names: set[str], is_only: bool = False) -> list[str]:
    """The requirements of ``pyproject`` whose names are not in ``names``; with ``is_only`` those that are."""
    listed: list[str] = tomllib.loads(pyproject.read_text())["project"]["dependencies"]
    return [text for text in listed if (re.split(r"[^A-Za-z0-9._-]", text)[0].lower() in names) == is_only]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="store_true", help="print those named instead of the others")
    parser.add_argument("pyproject", type=Path)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    chosen = requirements(arguments.pyproject, {name.lower() for name in arguments.names}, arguments.only)
    print("\n".join(chosen))
