"""Build the native kernels of a PEF that is served already, as a program of its own::

    python -m rdukit_modelbox.artifacts.native_kernels PARENT PEF NATIVE_PEF

It leads a session, gives way to other work, and ends with its parent process PARENT. Of several, one builds.
"""

import sys
from pathlib import Path
from typing import Final

import click

from rdukit.cli import exit_on_error
from rdukit.files.locks import sole_lock
from rdukit.system.process import end_group_with_parent, lower_priority
from rdukit_compiler.cli import build_pef

#: Longest time to wait for another server that builds the same kernels, in seconds.
WAIT_S: Final = 1800.0
#: Added to the niceness: requests come first.
NICENESS: Final = 5


def build_native(pef: Path, native_pef: Path) -> None:
    """Write ``native_pef``, unless another process has written it meanwhile.

    Raises:
        PefError: ``pef`` cannot be read. CompileError: there is no C++ compiler.
    """
    with sole_lock(native_pef.with_suffix(".lock"), WAIT_S):
        if native_pef.is_file():
            return
        built, wanted = build_pef(pef, native_pef)
        click.echo(f"native kernels: {built} of {wanted} are built", err=True)


if __name__ == "__main__":
    with exit_on_error():
        _parent, _pef, _native = sys.argv[1:]
        end_group_with_parent(int(_parent))
        lower_priority(NICENESS)
        build_native(Path(_pef), Path(_native))
