"""Runs PEFs that may be anything: ``python -P trial.py FOLDER``, paths on stdin, a line for each.

A line is ``ran``, ``refused <code>``, or ``bare <error>``; a process that dies leaves a path without a line. It may
write beneath the folder only, and has 4 GiB of memory and 20 s of processor time for each PEF.
"""

import resource
import signal
import sys
from pathlib import Path

import torch

from rdukit.errors import RdukitError
from rdukit.fence import kernel
from rdukit.pef.model import SymbolKind
from rdukit_runtime.application import open_application

MEMORY_BYTES = 4 << 30
CPU_S = 20


class TimeLimitExceeded(Exception):
    """The processor time of one PEF is used up."""


def try_pef(path: Path) -> str:
    """Load a PEF, run each of its graphs on random numbers, and read what they give."""
    generator = torch.Generator().manual_seed(0)
    try:
        with open_application(path, "trial") as application:
            program = application.program
            for name, symbol in application.pef.symbols.items():
                if symbol.kind in {SymbolKind.INPUT, SymbolKind.PARAMETER, SymbolKind.BUFFER}:
                    dtype = getattr(torch, symbol.host_dtype)
                    value = torch.rand(symbol.shape, generator=generator)
                    program.write(name, value.to(dtype) if dtype.is_floating_point else value.mul(3).to(dtype))
            for graph in application.pef.graphs.values():
                application.run(graph.name, graph.schedule, application.pef.hyperparameters)
                for name in graph.outputs:
                    program.read(name)
    except RdukitError as refused:
        return f"refused {refused.code}"
    except TimeLimitExceeded:
        return "refused too-long"
    except MemoryError:
        return "refused out-of-memory"
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
        return f"bare {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return "ran"


def _end(number: int, frame: object) -> None:
    raise TimeLimitExceeded


def main() -> None:
    """Answer each line of stdin."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    torch.set_num_threads(1)
    kernel.set_no_new_privileges()
    kernel.enter_landlock_domain(kernel.landlock_abi(), [Path(sys.argv[1]), Path("/dev")])
    signal.signal(signal.SIGVTALRM, _end)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)
        told = try_pef(Path(line.rstrip("\n")))
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        print(told.encode("ascii", "backslashreplace").decode(), flush=True)


if __name__ == "__main__":
    main()
