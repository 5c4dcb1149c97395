"""The ModelBox command with the tests' box ``counter`` among its boxes, so that one platform runs both kinds.

Copied as ``__main__.py`` beside ``platform_box.py``: a fence shows a box what its command line names.
"""

import json
import subprocess
import sys

import platform_box


def main() -> None:
    """List all boxes, or do what is asked with the one that is named."""
    words = sys.argv[1:]
    if words[:1] == ["list"]:
        listed = subprocess.run([sys.executable, "-m", "rdukit_modelbox", *words], capture_output=True, check=True)
        print(json.dumps([*json.loads(listed.stdout), platform_box.DESCRIPTION]))
    elif platform_box.DESCRIPTION["name"] in words:
        platform_box.main()
    else:  # imported only here: the tests' box is to start at once
        from rdukit.cli import run_command
        from rdukit_modelbox.cli.main import box

        run_command(box)


if __name__ == "__main__":
    main()
