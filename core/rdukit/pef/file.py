"""The PEF file: its container, reading and writing. The container is a zip whose entries are stored, not deflated.

==================  ==================================================================================================
entry               content
==================  ==================================================================================================
``pef.json``        ``{"format": [major, minor], "digests": {entry: sha256}, "signature", "pef": {…}}``; first entry
``ir/<digest>``     a kernel's portable graph (JSON), named by its SHA-256
``so/<digest>.so``  a native library made from that kernel; optional
==================  ==================================================================================================

A reader accepts its own major version, with minor versions up to its own. A PEF has no weights and no pickle. Kernels
of 1.3 may hold ``rdukit.lstm_layer`` and its gradient, those of 1.4 ``rdukit.grouped_product`` and its gradient, those
of 1.5 ``rdukit.int4_linear``; its weights have had another layout since, so a PEF with the first one is refused. A
graph of 1.4 may be the evaluation graph of another. A PEF of 1.6 may be for several chips.

A PEF is written atomically, as the last step of a compile; a reader checks the whole file before it uses a part.
"""

import io
import json
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from rdukit.errors import PefCorrupt, PefNotAllowed, PefNotFound, PefVersionMismatch
from rdukit.files.atomic import sha256_of, write_atomic
from rdukit.pef.kernel import KernelGraph, kernel_from_json
from rdukit.pef.model import Pef, Section, SectionType, pef_from_dict, pef_to_dict
from rdukit.pef.operators import check_operators, check_values, foreign_operators
from rdukit.pef.trust import is_trusted, sign

#: Written into every PEF; readers refuse another major, or a newer minor.
FORMAT_VERSION: Final = (1, 6)
#: Zip archive comment, by which ``file`` and people recognise a PEF.
COMMENT: Final = b"rdukit PEF"
INDEX: Final = "pef.json"
IR_FOLDER: Final = "ir/"
NATIVE_FOLDER: Final = "so/"
#: Maximum bytes of entries that a reader accepts: 64 MiB for the index, 256 MiB for a library.
MAX_INDEX_BYTES: Final = 64 << 20
MAX_ENTRY_BYTES: Final = 256 << 20

#: Function that every native library exports in addition to its section: it runs a list of sections.
LIST_RUNNER: Final = "rdukit_run_list"
#: Key of a PEF's metadata for the model's shape, as JSON, which a compiling ModelBox writes.
BOX_KEY: Final = "modelbox"


def section_symbol(digest: str) -> str:
    """Return the name of the function that a kernel's native library exports."""
    return f"rdukit_section_{digest[:32]}"


#: Exceptions of zipfile, struct and json for malformed bytes.
_UNREADABLE: Final = (
    zipfile.BadZipFile, struct.error, OSError, ValueError, KeyError, TypeError, EOFError, OverflowError,
    NotImplementedError, RuntimeError,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LoadedPef:
    """A PEF with its kernels and the bytes of its native libraries, both by kernel digest."""

    path: Path
    pef: Pef
    kernels: dict[str, KernelGraph]
    natives: dict[str, bytes]
    #: Whether this installation wrote the file, including its libraries.
    is_trusted: bool = False
    #: Format of the file: major, minor.
    format_version: tuple[int, int] = FORMAT_VERSION


def read_pef(path: Path | str) -> LoadedPef:
    """Read and check the PEF at ``path``: container, version, digests, names, kernels and their operators.

    Raises:
        PefNotFound: there is no file.
        PefVersionMismatch: this reader does not accept the file's format.
        PefNotAllowed: it names a forbidden operator, or was compiled elsewhere and names a user-defined one.
        PefCorrupt: any other error.
    """
    if str(path) in {"", "."}:  # Path("") is the current folder
        raise PefNotFound("no PEF was named; pass the path of a .pef file with --pef, or compile in this process first")
    path = Path(path)
    if not path.exists():
        raise PefNotFound(f"no PEF file at {str(path)!r}; compile the program first, or pass its path with --pef")
    if not path.is_file():
        raise PefCorrupt(f"{path} is not a file; a PEF is the .pef file inside the compile's output folder")
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if INDEX not in names:
                raise PefCorrupt(f"{path} is not a PEF: it has no {INDEX}")
            index = json.loads(_entry(archive, INDEX, MAX_INDEX_BYTES))
            format_version = _check_version(path, index)
            digests = dict(index["digests"])
            if set(digests) != set(names) - {INDEX}:
                raise PefCorrupt(f"{path}: the entries differ from the table of contents; compile again")
            entries = {name: _entry(archive, name, MAX_ENTRY_BYTES) for name in digests}
    except _UNREADABLE as cause:
        raise PefCorrupt(f"{path} is not a readable PEF (truncated or overwritten?): {cause}; compile again") from cause
    for name, data in entries.items():
        if sha256_of(data) != digests[name]:
            raise PefCorrupt(f"{path}: entry {name} does not match its digest; compile again")
    pef = pef_from_dict(index["pef"])
    kernels = {
        name.removeprefix(IR_FOLDER): kernel_from_json(data)
        for name, data in entries.items()
        if name.startswith(IR_FOLDER)
    }
    natives = {
        name.removeprefix(NATIVE_FOLDER).removesuffix(".so"): data
        for name, data in entries.items()
        if name.startswith(NATIVE_FOLDER)
    }
    for digest in kernels:  # a kernel's name is the digest of its bytes
        if digests[IR_FOLDER + digest] != digest:
            raise PefCorrupt(f"{path}: kernel {digest[:12]} does not match its name; compile again")
    for section in pef.sections:
        if section.kernel not in kernels:
            raise PefCorrupt(f"{path}: section {section.id} needs kernel {section.kernel[:12]}, which is missing")
        try:
            check_bound(pef, section, kernels[section.kernel])
        except PefCorrupt as cause:
            raise PefCorrupt(f"{path}: {cause.message}") from cause
    foreign: set[str] = set()
    for kernel in kernels.values():
        check_operators(kernel)
        check_values(kernel, pef.hyperparameters)
        foreign |= foreign_operators(kernel)
    is_ours = is_trusted(index)
    if foreign and not is_ours:
        raise PefNotAllowed(
            f"{path} runs operators of a program's own on the host ({', '.join(sorted(foreign))[:200]}), and was not "
            "compiled by this installation; compile the program here"
        )
    return LoadedPef(path, pef, kernels, natives, is_ours, format_version)


class Answers(StrEnum):
    """Kind of a PEF's outputs when a ModelBox serves it."""

    TEXTS = "texts"
    ROWS = "rows"
    #: The PEF is for training, and its only output is the loss.
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class PefSummary:
    """Tiles, processes, parameters and kind of outputs of a PEF."""

    #: Tiles that it was compiled for.
    tiles: int
    #: Whether it averages its gradients over several processes.
    averages_gradients: bool
    #: Kind of outputs; ``None``: a ModelBox did not compile it.
    answers: Answers | None = None
    #: Whether it is for inference only.
    inference: bool = False
    #: Symbols of the parameters that its graphs read.
    parameters: frozenset[str] = frozenset()


class PefTooLarge(PefCorrupt):
    """A PEF's table of contents or index is larger than the reader's limit."""


class _BoundedFile(io.FileIO):
    """A file that limits the bytes of one read: ``zipfile`` would read a table of contents of any size."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        super().__init__(path)
        self._max_bytes = max_bytes

    def read(self, size: int | None = -1, /) -> bytes:
        """Read ``size`` bytes. Raises: PefTooLarge: ``size`` exceeds the limit."""
        beyond = self._max_bytes + 1
        data = super().read(beyond if size is None or size < 0 else min(size, beyond)) or b""
        if len(data) == beyond:
            raise PefTooLarge(f"the PEF's table of contents or index is larger than {self._max_bytes} bytes")
        return data


def read_summary(path: Path, max_bytes: int = MAX_INDEX_BYTES) -> PefSummary:
    """Read the summary of the PEF at ``path`` from its index alone; the rest is not checked.

    Args:
        max_bytes: limit of its table of contents, and of its index.
    Raises:
        PefTooLarge: one of them exceeds the limit.
        PefNotFound: there is no file.
        PefVersionMismatch: this reader does not accept the file's format.
        PefCorrupt: it is not a PEF, or its index cannot be read.
    """
    try:
        with _BoundedFile(path, max_bytes) as file, zipfile.ZipFile(file) as archive:
            if archive.getinfo(INDEX).file_size > max_bytes:
                raise PefTooLarge(f"the PEF's index is larger than {max_bytes} bytes")
            index = json.loads(_entry(archive, INDEX, max_bytes))
            _check_version(path, index)
            tiles = index["pef"]["num_tiles"]
            averages = any(section["type"] == SectionType.REDUCE for section in index["pef"]["sections"])
            answers = _find_answers(index["pef"])
            signature = index["pef"]["signature"].values()
            parameters = frozenset(name for graph in signature for name in graph.get("parameters", ()))
            inference = index["pef"]["inference"] is True
    except FileNotFoundError as cause:
        raise PefNotFound(f"no PEF file at {str(path)!r}") from cause
    except _UNREADABLE as cause:
        raise PefCorrupt(f"{path.name} is not a readable PEF (truncated or overwritten?): {cause}") from cause
    if type(tiles) is not int or tiles < 1:
        raise PefCorrupt(f"{path.name} states that it needs {tiles!r} tiles; expected 1 or more")
    return PefSummary(tiles, averages, answers, inference, parameters)


def _find_answers(pef: Mapping[str, Any]) -> Answers | None:
    try:
        shape = json.loads(pef["metadata"][BOX_KEY])
        outputs, is_text = shape.get("outputs", ["logits"]), bool(shape.get("text"))
        answers = Answers.ROWS if any(name != "loss" for name in outputs) else Answers.NOTHING
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return Answers.TEXTS if is_text else answers


def _entry(archive: zipfile.ZipFile, name: str, limit: int) -> bytes:
    info = archive.getinfo(name)
    if info.file_size > limit or info.compress_type != zipfile.ZIP_STORED:
        raise PefCorrupt(f"entry {name} is larger than {limit} bytes or compressed; a PEF's entries are stored")
    return archive.read(name)


def _check_version(path: Path, index: dict[str, object]) -> tuple[int, int]:
    version = index["format"]
    major, minor = FORMAT_VERSION
    match version:
        case [int(theirs), int(their_minor)]:
            if theirs != major or their_minor > minor:
                raise PefVersionMismatch(
                    f"PEF version mismatch: {path} has format {theirs}.{their_minor}, but this runtime reads "
                    f"{major}.0 to {major}.{minor}; compile with the installed version"
                )
            return theirs, their_minor
        case _:
            raise PefCorrupt(f"{path}: format version {version!r} is not [major, minor]")


def check_bound(pef: Pef, section: Section, kernel: KernelGraph) -> None:
    """Check that a section's symbols have the number, dtypes and shapes of its kernel's inputs and outputs.

    Raises:
        PefCorrupt: they differ.
    """
    if len(kernel.inputs) != len(section.inputs) or len(kernel.outputs) != len(section.outputs):
        raise PefCorrupt(
            f"section {section.id} binds {len(section.inputs)} inputs and {len(section.outputs)} outputs, but its "
            f"kernel has {len(kernel.inputs)} and {len(kernel.outputs)}"
        )
    for name, spec in zip(section.inputs, kernel.inputs, strict=True):
        symbol = pef.symbols[name]
        if (symbol.dtype, symbol.shape) != (spec.dtype, spec.shape):
            raise PefCorrupt(
                f"section {section.id} binds {name!r}, {symbol.dtype} {list(symbol.shape)}, to an input of its "
                f"kernel that is {spec.dtype} {list(spec.shape)}"
            )


#: Time of all entries, so that equal compiles give equal bytes.
_EPOCH = (1980, 1, 1, 0, 0, 0)


def write_pef(path: Path, pef: Pef, kernels: Mapping[str, KernelGraph], natives: Mapping[str, bytes]) -> None:
    """Write ``pef`` with its kernels (by digest) and native libraries (by the same digests) to ``path``.

    Equal arguments on one installation give equal bytes. A reader never sees a half-written file.

    Raises:
        PefNotAllowed: a kernel has an operator that a PEF may not name; no file is written.
    """
    for kernel in kernels.values():
        check_operators(kernel)
    entries = {IR_FOLDER + digest: kernel.to_json() for digest, kernel in sorted(kernels.items())}
    entries |= {f"{NATIVE_FOLDER}{digest}.so": data for digest, data in sorted(natives.items())}
    digests = {name: sha256_of(data) for name, data in entries.items()}
    index: dict[str, Any] = {"format": list(FORMAT_VERSION), "digests": digests, "pef": pef_to_dict(pef)}
    index["signature"] = sign(json.loads(json.dumps(index)))  # as a reader parses it
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.comment = COMMENT
        archive.writestr(zipfile.ZipInfo(INDEX, _EPOCH), json.dumps(index, sort_keys=True))
        for name, data in entries.items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data)
    write_atomic(path, buffer.getvalue())
