"""``python -m rdukit_platform.worker``: the worker process."""

from rdukit.logs import configure_logging
from rdukit_platform.settings import checked_home
from rdukit_platform.worker.serve import serve

if __name__ == "__main__":
    configure_logging()
    serve(checked_home())
