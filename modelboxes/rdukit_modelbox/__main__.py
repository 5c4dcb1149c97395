"""``python -m rdukit_modelbox``: the same as ``rdukit box``."""

from rdukit.cli import run_command
from rdukit_modelbox.cli.main import box

if __name__ == "__main__":
    run_command(box)
