"""Print the distribution's requirements without some of them: ``requirements.py pyproject.toml torch numpy``."""

import re
import sys
import tomllib
from pathlib import Path


def requirements(pyproject: Path, without: set[str]) -> list[str]:
    """The requirements of ``pyproject`` whose names are not in ``without``."""
    listed: list[str] = tomllib.loads(pyproject.read_text())["project"]["dependencies"]
    return [text for text in listed if re.split(r"[^A-Za-z0-9._-]", text)[0].lower() not in without]


if __name__ == "__main__":
    print("\n".join(requirements(Path(sys.argv[1]), {name.lower() for name in sys.argv[2:]})))
