"""Write requirements.lock: every package that the project may install, by version and hashes, for all platforms.

``python scripts/lock.py`` keeps the versions that the lock has where they are still legal; ``--upgrade`` takes the
newest. It asks the index that pip and uv are set up for and leaves no trace of it: no address, no path.

torch and what only its builds for GPUs need are left out: its version is exact in pyproject.toml, its bytes depend on
the build that the index offers.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
LOCK: Final = ROOT / "requirements.lock"
HEAD: Final = "# Written by `make lock` for images and `make audit`; torch is left out (scripts/lock.py says why).\n"
#: The extras that images and development use.
EXTRAS: Final = ("dev", "s3", "docker")
_LEFT_OUT: Final = re.compile(r"(torch|triton|nvidia-[\w-]+|cuda-[\w-]+)(==|\[| )")
#: Nothing of a machine may be in the lock.
_FOREIGN: Final = re.compile(r"://|file:|^-|@ |/")


def kept_blocks(text: str) -> list[str]:
    """Return the requirements of uv's output with their hashes, without those that the lock leaves out (pure).

    Raises:
        ValueError: a line names an address, a path or an option.
    """
    blocks: list[str] = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if line[0].isspace():
            blocks[-1] += line + "\n"
        else:
            blocks.append(line + "\n")
    for block in blocks:
        if _FOREIGN.search(block):
            raise ValueError(f"this is not for a lock: {block.splitlines()[0]}")
        if "--hash=sha256:" not in block:
            raise ValueError(f"there is no hash for {block.splitlines()[0]}")
    return [block for block in blocks if not _LEFT_OUT.match(block)]


def main() -> None:
    """Resolve the requirements, check them, and write the lock."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that are legal")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where it would change")
    chosen = parser.parse_args()
    command = [
        str(Path(sys.executable).with_name("uv")), "pip", "compile", "--quiet", "--universal", "--python-version",
        "3.11", "--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links",
        *(f"--extra={extra}" for extra in EXTRAS), "pyproject.toml",
    ]  # fmt: skip
    if LOCK.exists() and not chosen.upgrade:
        command += ["--constraints", str(LOCK)]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"lock: the index gave no answer for all packages:\n{done.stderr.strip()[-2000:]}")
    text = HEAD + "".join(kept_blocks(done.stdout))
    if LOCK.exists() and LOCK.read_text() == text:
        return
    if chosen.check:
        sys.exit("lock: requirements.lock is not what pyproject.toml asks for; run: make lock")
    LOCK.write_text(text)
    print(f"wrote {LOCK.name}: {text.count('==')} packages")


if __name__ == "__main__":
    main()
