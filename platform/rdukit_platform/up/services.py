"""``python -m rdukit_platform.up.services``: imports the modules of the platform's services once, and forks the
services.

Most of a service's start is imports, which gateway, scheduler and worker have in common. Forked services share that
memory, too, and restart in milliseconds.
"""

import os
import signal
import sys
from typing import Final

from rdukit.fence.kernel import set_process_name
from rdukit.system.forks import ForkRequest, import_for_forks, serve_forks
from rdukit.system.process import die_with_parent

#: The services, and the modules that they import at start.
MODULES: Final = (
    "rdukit_platform.gateway.__main__",
    "rdukit_platform.scheduler.__main__",
    "rdukit_platform.worker.__main__",
    "uvloop",
    "uvicorn.loops.uvloop",
    "uvicorn.lifespan.on",
    "celery.bin.worker",
    "celery.worker.consumer",
)


def prepare_services() -> None:
    """Import the services' modules, and prepare the gateway's routes, before the first fork."""
    import_for_forks(MODULES)
    from rdukit_platform.gateway.app import prepare_routes

    prepare_routes()


def has_imported_services() -> bool:
    """Return whether this process can fork services itself, because its parent has imported their modules."""
    return all(name in sys.modules for name in MODULES)


def run_service(request: ForkRequest) -> int:
    """Run the service that a fork is to become, until it ends.

    Raises:
        SystemExit: it failed.
    """
    die_with_parent(request.server, signal.SIGTERM)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    os.environ.update(request.body["environment"])
    match request.body["name"]:
        case "gateway":
            from rdukit_platform.gateway.__main__ import main as run_gateway

            (listener,) = request.descriptors
            run_gateway(["--fd", str(listener)], standalone_mode=False)
        case "scheduler":
            from rdukit_platform.scheduler.__main__ import main as run_scheduler

            run_scheduler()
        case "worker":
            from rdukit_platform.worker.__main__ import main as run_worker

            run_worker()
    return 0


def main() -> None:
    """Fork services for the process at the other end of the socket whose number is the argument."""
    prepare_services()
    set_process_name("services")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve_forks(int(sys.argv[1]), run_service)


if __name__ == "__main__":
    main()
