"""``rdukit box fork-server``: a worker forks its jobs' boxes from this server, and the boxes fork their operations.

A started box imports for one second, and each of its operations imports torch for two. A fork has both already. The
server itself reads no job, no tenant's box and no checkpoint, and a worker starts it without its own environment. So
the server holds nothing that one tenant's box could learn about another's.
"""

import asyncio
import importlib
import pkgutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import click

from rdukit.cli import run_command
from rdukit.fence.start import run_forked
from rdukit.system.forks import import_for_forks, serve_forks

#: Modules and packages that boxes and operations import, independent of jobs.
MODULES: Final = (
    "torch", "numpy.random", "safetensors.torch", "sambaflow.samba.utils", "sambaflow.samba.session",
    "uvicorn.lifespan.off", "anyio._backends._asyncio",
)  # fmt: skip
PACKAGES: Final = ("rdukit_modelbox", "rdukit_serving.rest", "rdukit_serving.rpc", "rdukit_serving.text", "rdukit_zoo")
#: Package that no box imports: its programs call models from outside, and its clients import for a second.
NOT_IN_BOXES: Final = "rdukit_zoo.kits"


def serve_boxes(descriptor: int, box: click.Command) -> None:
    """Fork boxes for the process that has the other end of a socket, until it closes that end.

    Args:
        box: the command ``rdukit box``, which the forks run.
    """
    import_for_forks(MODULES)
    import_for_forks(find_modules())
    asyncio.run(_warm_up())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve_forks(descriptor, partial(run_forked, program=partial(run_box, box)))


def find_modules() -> list[str]:
    """Return every module of ``PACKAGES``, except programs and ``NOT_IN_BOXES``."""
    found: list[str] = []
    for name in PACKAGES:
        package = importlib.import_module(name)
        found += [each.name for each in pkgutil.walk_packages(package.__path__, f"{name}.")]
    return [name for name in found if not name.endswith("__main__") and not f"{name}.".startswith(f"{NOT_IN_BOXES}.")]


async def _warm_up() -> None:
    """Build once what every box needs: the routes, and the parsed files of the installed boxes."""
    from rdukit_modelbox.contract.box import box_names, find_box_file, load_box
    from rdukit_modelbox.rest.routes_ahead import build_routes_ahead
    from rdukit_modelbox.server.serve import BoxOptions, ServedBox

    for name in box_names():
        load_box(find_box_file(name))
    with tempfile.TemporaryDirectory() as folder:
        service = ServedBox(BoxOptions(find_box_file("logreg"), Path(folder)))
        await build_routes_ahead(service)
        service.describe()
        await service.close()


def run_box(box: click.Command, arguments: Sequence[str]) -> int:
    """Run ``rdukit box`` in a fork, which forks the server of its operations before it starts its threads."""
    import numpy as np

    from rdukit_modelbox.operations.child import main
    from rdukit_modelbox.operations.forks import keep_fork_server

    # Only this generator would repeat the same numbers in each fork.
    np.random.seed()
    keep_fork_server(main)
    sys.argv = ["rdukit box", *arguments]
    run_command(box)
    return 0
