"""A box's additions to its base image: small text files, labels and the start command."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rdukit import __version__
from rdukit.box.image import (
    BOX_FOLDER,
    BOX_LABEL,
    GRPC_PORT,
    LABEL_PREFIX,
    MAX_BOX_BYTES,
    REST_PORT,
    STATE_FOLDER,
    USER_ID,
)
from rdukit.errors import InvalidArgument
from rdukit_modelbox.contract.box import FILE_NAME, Box, find_box_file, load_box
from rdukit_modelbox.image.layer import LayerEntry
from rdukit_modelbox.image.sbom import SbomComponent, make_sbom

#: Suffixes of files that are copied into an image; others are left out, or refused if they are artifacts.
KEPT_SUFFIXES: Final = (".yaml", ".yml", ".py", ".md", ".json", ".txt", ".toml")
KEPT_NAMES: Final = ("LICENSE", "LICENCE", "NOTICE")
#: Artifacts: mounted or fetched by URI when the box runs, never part of an image.
ARTIFACT_SUFFIXES: Final = (
    ".pef", ".safetensors", ".pt", ".pth", ".ckpt", ".bin", ".npz", ".npy", ".h5", ".hdf5", ".parquet", ".gguf",
    ".pkl", ".pickle",
)  # fmt: skip
SBOM_PATH: Final = f"{BOX_FOLDER}/sbom.cdx.json"

COMMAND: Final = (
    "rdukit", "box", "run", f"{BOX_FOLDER}/{FILE_NAME}", "--host", "0.0.0.0",
    "--rest-port", str(REST_PORT), "--grpc-port", str(GRPC_PORT), "--parent", "0",
)  # fmt: skip
HEALTH_PROGRAM: Final = (
    f"import http.client as h; c = h.HTTPConnection('127.0.0.1', {REST_PORT}, timeout=4); "
    "c.request('GET', '/health/ready'); raise SystemExit(c.getresponse().status != 200)"
)
HEALTH_COMMAND: Final = ("python", "-I", "-S", "-c", HEALTH_PROGRAM)
ENVIRONMENT: Final = {
    "RDUKIT_HOME": STATE_FOLDER,
    "HOME": STATE_FOLDER,
    "USER": "rdukit",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
}


@dataclass(frozen=True, slots=True)
class BoxContents:
    """A box, and its files by their path in its folder."""

    box: Box
    files: Mapping[str, bytes]

    @property
    def labels(self) -> dict[str, str]:
        """Return the image's labels, which are also its manifest's annotations."""
        box = self.box
        return {
            "org.opencontainers.image.title": f"rdukit ModelBox {box.name}",
            "org.opencontainers.image.description": box.title,
            "org.opencontainers.image.version": self.version,
            BOX_LABEL: box.name,
            f"{LABEL_PREFIX}version": self.version,
            f"{LABEL_PREFIX}model": str(box.model),
            f"{LABEL_PREFIX}compiler": box.compiler_version,
            f"{LABEL_PREFIX}verbs": ",".join(box.verbs),
        }

    @property
    def version(self) -> str:
        """Return the version in the labels of the box's YAML, or rdukit's."""
        given = getattr(self.box, "labels", None) or {}
        return str(given.get("org.opencontainers.image.version") or given.get("version") or __version__)

    def all_files(self) -> dict[str, bytes]:
        """Return the files and the bill of materials, by path in ``BOX_FOLDER``."""
        subject = {"name": f"rdukit-box-{self.box.name}", "version": self.version}
        return {**self.files, SBOM_PATH.rpartition("/")[2]: make_sbom(subject, [SbomComponent("rdukit", __version__)])}

    def entries(self) -> list[LayerEntry]:
        """Return the layer: the files under ``BOX_FOLDER``, the state folder and the user's."""
        found = [LayerEntry(f"{BOX_FOLDER}/{name}", data=data) for name, data in self.all_files().items()]
        return [*found, LayerEntry(STATE_FOLDER, user=USER_ID, mode=0o700)]


def read_contents(box: str) -> BoxContents:
    """Return the box named ``box`` (an installed one's name, a YAML file, or its folder) and its files for the image.

    Raises:
        NotFound: there is no such box.
        InvalidArgument: its YAML is wrong, its folder holds an artifact or a link, or is too large.
    """
    file = find_box_file(box)
    loaded = load_box(file)
    files = dict(sorted(_read_files(file.parent).items())) | {FILE_NAME: file.read_bytes()}
    total = sum(map(len, files.values()))
    if total > MAX_BOX_BYTES:
        raise InvalidArgument(
            f"the files of box {loaded.name} have {total} bytes; expected up to {MAX_BOX_BYTES}; "
            "mount or fetch data when the box runs"
        )
    return BoxContents(loaded, files)


def _read_files(folder: Path) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if any(part.startswith(".") or part == "__pycache__" for part in name.split("/")):
            continue
        if path.is_symlink():
            raise InvalidArgument(f"{path} is a link, but an image gets only files; copy the link's target")
        if not path.is_file():
            continue
        if path.suffix.lower() in ARTIFACT_SUFFIXES:
            raise InvalidArgument(
                f"{path} is an artifact; a box mounts or fetches PEFs, checkpoints and data when it runs, so move the "
                "file out of the box's folder"
            )
        if path.suffix.lower() in KEPT_SUFFIXES or path.name in KEPT_NAMES:
            if path.stat().st_size > MAX_BOX_BYTES:
                raise InvalidArgument(f"{path} has {path.stat().st_size} bytes; expected up to {MAX_BOX_BYTES}")
            files[name] = path.read_bytes()
    return files


def make_dockerfile(contents: BoxContents, base: str) -> str:
    """Write a Dockerfile for every builder: no syntax line, mounts or heredocs. Its context has ``box``."""
    labels = " \\\n    ".join(f"{key}={_quoted(value)}" for key, value in sorted(contents.labels.items()))
    return (
        f"ARG BASE_IMAGE={base}\n"
        "# hadolint ignore=DL3006\n"
        "FROM ${BASE_IMAGE}\n"
        f"COPY box {BOX_FOLDER}\n"
        f"LABEL {labels}\n"
        f"USER {USER_ID}:{USER_ID}\n"
        f"EXPOSE {REST_PORT} {GRPC_PORT}\n"
        "HEALTHCHECK --interval=5s --timeout=5s --start-period=20s --retries=3 \\\n"
        f"    CMD {_exec_form(HEALTH_COMMAND)}\n"
        f"CMD {_exec_form(COMMAND)}\n"
    )


def _quoted(text: str) -> str:
    cleaned = " ".join(text.split())
    return '"' + cleaned.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$") + '"'


def _exec_form(words: Sequence[str]) -> str:
    return "[" + ", ".join(_quoted(word) for word in words) + "]"
