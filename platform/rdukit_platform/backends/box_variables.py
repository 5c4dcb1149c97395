"""Variables of a box that is a process: the one list of what it gets of its worker's, in a fence and without one.

A worker's environment has passwords of database and broker, keys of a bucket and tokens. A box gets the variables that
are named here, those that ``worker.box_environment`` names, and those of its job; nothing else.
"""

from collections.abc import Mapping
from typing import Final

from rdukit.settings import CONFIG, HOME, resolve, variables_of
from rdukit_platform.settings import BOX_ENVIRONMENT

#: Numbers of threads, which a box takes over.
THREADS: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
#: Of each box, before what its job adds.
ENVIRONMENT: Final[Mapping[str, str]] = {"LANG": "C.UTF-8", "TMPDIR": "/tmp", "PYTHONUNBUFFERED": "1"}
#: Of its worker's, in a fence.
FENCED: Final = ("PATH", *THREADS)
#: Of its worker's, without a fence: it is the worker's user, with the same folders, and finds the same programs.
UNFENCED: Final = (
    *FENCED, "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "PYTHONPATH", "LD_LIBRARY_PATH",
    "VIRTUAL_ENV", "XDG_CACHE_HOME", HOME.variable, CONFIG.variable,
)  # fmt: skip
#: What a server needs that imports for boxes and is no box: to import the same, for as many threads.
SERVER: Final = (*FENCED, "PYTHONPATH", "LD_LIBRARY_PATH")


def named_variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return what ``worker.box_environment`` names, as far as it is set here or in the settings file."""
    return variables_of((word.strip() for word in resolve(BOX_ENVIRONMENT).split(",")), environ)


def fenced_variables(environ: Mapping[str, str], given: Mapping[str, str], home: str) -> dict[str, str]:
    """Return the variables of a box in a fence (pure).

    Args:
        environ: its worker's.
        given: those of its job, which count more; among them what ``worker.box_environment`` names.
        home: folder of its tenant.
    """
    own = {"PATH": "/usr/bin:/bin", "HOME": home, HOME.variable: home, **ENVIRONMENT}
    return {**own, **_taken(environ, FENCED), **given}


def unfenced_variables(environ: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a box that has no fence; arguments as of ``fenced_variables``."""
    return {**_taken(environ, UNFENCED), **named_variables(environ), **given}


def server_variables(environ: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the server that boxes are forked from (pure); ``given`` are those of all boxes."""
    return {**_taken(environ, SERVER), **ENVIRONMENT, **given}


def _taken(environ: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    return {name: environ[name] for name in names if name in environ}
