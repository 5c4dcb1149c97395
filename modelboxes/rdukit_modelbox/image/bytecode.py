"""Bytecode of everything that a box imports at start; a read-only system would compile it at each start.

``python -m rdukit_modelbox.image.bytecode`` imports the modules, so Python writes missing bytecode; ``--list`` prints
the files instead. The Dockerfile uses the former, an installed base the latter.
"""

import argparse
import importlib
import importlib.util
import marshal
import os
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from rdukit.errors import Unavailable
from rdukit_modelbox.image.layer import LayerEntry

#: The command, the wires, the process of a served model, the child of a verb; the platform's worker, which starts boxes
#: on the same image; imports of health probes; late imports of a compile, and of torch at an optimizer's first step.
START_MODULES: Final = (
    "rdukit.cli", "rdukit_modelbox.cli.main", "rdukit_modelbox.server.serve", "rdukit_modelbox.server.grpc_server",
    "rdukit_serving.rest.connection", "rdukit_modelbox.rest.app", "rdukit_serving.text.rest",
    "rdukit_serving.server", "rdukit_serving.device.process",
    "rdukit_serving.device.loaded_model", "rdukit_modelbox.operations.child", "rdukit_modelbox.tasks.program",
    "rdukit_modelbox.verbs.compile", "rdukit_modelbox.verbs.train", "rdukit_modelbox.verbs.preprocess",
    "rdukit_modelbox.verbs.infer", "rdukit_platform.worker.serve", "http.client", "urllib.request",
    "sambaflow.samba", "rdukit_compiler.pipeline", "torch._dynamo", "torch._inductor.compile_fx", "numpy.random",
    "numpy.ctypeslib",
)  # fmt: skip
#: Newest version of marshal without references, which would depend on other objects in memory.
_MARSHAL_VERSION: Final = 2
#: Header flags: not checked against the source's date or digest (PEP 552).
_UNCHECKED_HASH: Final = (1).to_bytes(4, "little")


def imported_files() -> frozenset[str]:
    """Return the source files, as real paths, that a box imports at start; a separate process finds them.

    Raises:
        Unavailable: an import fails; the message has the last line.
    """
    command = [sys.executable, "-m", "rdukit_modelbox.image.bytecode", "--list"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        words = done.stderr.strip().splitlines() or ["it said nothing"]
        raise Unavailable(
            f"the imports of a box cannot be determined: {words[-1]}; check that the installation is complete"
        )
    return frozenset(done.stdout.splitlines())


def bytecode_entries(entries: Iterable[LayerEntry], files: Collection[str]) -> Iterator[LayerEntry]:
    """Yield bytecode for the entries whose source is one of ``files`` (real paths).

    Its bytes depend only on source, path and interpreter, not on dates.
    """
    for entry in entries:
        if entry.source is None or os.path.realpath(entry.source) not in files:
            continue
        folder, _, name = entry.path.rpartition("/")
        cached = f"{folder}/__pycache__/{name.removesuffix('.py')}.{sys.implementation.cache_tag}.pyc"
        yield LayerEntry(cached, data=compile_source(entry.source.read_bytes(), entry.path))


def compile_source(source: bytes, path: str) -> bytes:
    """Return the content of the ``.pyc`` of a module, with ``path`` in its tracebacks."""
    code = compile(source, path, "exec", dont_inherit=True, optimize=0)
    try:
        body = marshal.dumps(code, _MARSHAL_VERSION)
    except ValueError:  # constants of a newer Python that this version lacks
        body = marshal.dumps(code)
    return importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH + importlib.util.source_hash(source) + body


def main(arguments: Sequence[str] | None = None) -> None:
    """Import all that a box imports when it starts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="print the source files that were imported")
    options = parser.parse_args(arguments)
    for name in START_MODULES:
        importlib.import_module(name)
    if options.list:
        origins = {getattr(getattr(module, "__spec__", None), "origin", None) for module in list(sys.modules.values())}
        sources = {origin for origin in origins if isinstance(origin, str) and origin.endswith(".py")}
        print("\n".join(sorted(os.path.realpath(path) for path in sources if Path(path).is_file())))


if __name__ == "__main__":
    main()
