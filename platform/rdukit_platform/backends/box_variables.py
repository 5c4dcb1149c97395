"""Environment variables of a box that is a process: the list of those it gets, in a fence and without one.

A worker's environment has passwords, keys and tokens. A box gets only the variables named here, those of
``worker.box_environment``, and those of its job.
"""

from collections.abc import Mapping
from typing import Final

from rdukit.settings import CONFIG, HOME, resolve, variables_of
from rdukit_platform.settings import BOX_ENVIRONMENT

#: Numbers of threads, which a box inherits.
THREADS: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
#: Variables of every box; its job's override them.
ENVIRONMENT: Final[Mapping[str, str]] = {"LANG": "C.UTF-8", "TMPDIR": "/tmp", "PYTHONUNBUFFERED": "1"}
#: Variables that a fenced box inherits from its worker.
FENCED: Final = ("PATH", *THREADS)
#: Variables that a box without a fence inherits: it has the worker's user, folders and programs.
UNFENCED: Final = (
    *FENCED, "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "PYTHONPATH", "LD_LIBRARY_PATH",
    "VIRTUAL_ENV", "XDG_CACHE_HOME", HOME.variable, CONFIG.variable,
)  # fmt: skip
#: Variables of the fork server, which must import the same modules for as many threads.
SERVER: Final = (*FENCED, "PYTHONPATH", "LD_LIBRARY_PATH")


def named_variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of ``worker.box_environment`` that are set here or in the settings file."""
    return variables_of((word.strip() for word in resolve(BOX_ENVIRONMENT).split(",")), environ)


def fenced_variables(environ: Mapping[str, str], given: Mapping[str, str], home: str) -> dict[str, str]:
    """Return the variables of a box in a fence (pure).

    Args:
        environ: the worker's variables.
        given: variables of the job and of ``worker.box_environment``; they override the others.
        home: folder of the tenant.
    """
    own = {"PATH": "/usr/bin:/bin", "HOME": home, HOME.variable: home, **ENVIRONMENT}
    return {**own, **_taken(environ, FENCED), **given}


def unfenced_variables(environ: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a box that has no fence; arguments as for ``fenced_variables``."""
    return {**_taken(environ, UNFENCED), **named_variables(environ), **given}


def server_variables(environ: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the server that forks boxes (pure); ``given`` are common to all boxes."""
    return {**_taken(environ, SERVER), **ENVIRONMENT, **given}


def _taken(environ: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    return {name: environ[name] for name in names if name in environ}
