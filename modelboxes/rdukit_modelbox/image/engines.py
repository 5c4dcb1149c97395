"""Build a box's image with docker, podman or buildah, from a generated Dockerfile."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from rdukit.errors import InvalidArgument, Unavailable
from rdukit_modelbox.image.contents import BoxContents, make_dockerfile

ENGINES: Final = ("docker", "podman", "buildah")
#: Command that tests an engine; docker also needs its daemon.
_PROBES: Final[Mapping[str, Sequence[str]]] = {
    "docker": ("docker", "version", "--format", "{{.Server.Version}}"),
    "podman": ("podman", "version"),
    "buildah": ("buildah", "version"),
}
_BUILDS: Final[Mapping[str, Sequence[str]]] = {
    "docker": ("docker", "build", "--quiet"),
    "podman": ("podman", "build", "--quiet", "--format", "docker"),
    "buildah": ("buildah", "bud", "--quiet", "--format", "docker", "--layers"),
}


def find_engine(wanted: str) -> str:
    """Return the engine to build with; ``auto`` takes the first that answers of docker, podman, buildah.

    Raises:
        InvalidArgument: rdukit knows no such engine.
        Unavailable: no engine answers; the message says how to build without one.
    """
    if wanted != "auto" and wanted not in ENGINES:
        raise InvalidArgument(f"engine {wanted!r} is not valid; expected auto, none, {', '.join(ENGINES)}")
    reasons = []
    for engine in ENGINES if wanted == "auto" else (wanted,):
        reason = _find_objection(engine)
        if reason is None:
            return engine
        reasons.append(f"{engine}: {reason}")
    raise Unavailable(f"no container engine ({'; '.join(reasons)}); pass --output FOLDER to build without one")


def _find_objection(engine: str) -> str | None:
    if shutil.which(engine) is None:
        return "not installed"
    try:
        done = subprocess.run(_PROBES[engine], capture_output=True, text=True, timeout=30, check=False)
    except subprocess.TimeoutExpired:
        return "does not answer"
    return None if done.returncode == 0 else _last_line(done.stderr)


def write_context(folder: Path, contents: BoxContents, base: str) -> None:
    """Write ``Dockerfile`` and ``box/`` to ``folder``."""
    for name, data in contents.all_files().items():
        path = folder / "box" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(0o644)
    for path in [folder / "box", *(p for p in (folder / "box").rglob("*") if p.is_dir())]:
        path.chmod(0o755)
    (folder / "Dockerfile").write_text(make_dockerfile(contents, base))


def build_with_engine(engine: str, contents: BoxContents, tag: str, base: str, timeout_s: float = 900.0) -> str:
    """Build ``contents`` on the image ``base`` and name it ``tag``. Returns the image's id as the engine prints it.

    Raises:
        Unavailable: the build failed; the message has its last line.
    """
    with tempfile.TemporaryDirectory(prefix="rdukit-build-") as folder:
        write_context(Path(folder), contents, base)
        command = [*_BUILDS[engine], "--build-arg", f"BASE_IMAGE={base}", "--tag", tag, folder]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False, env=_quiet_environment()
        )
    if done.returncode != 0:
        raise Unavailable(
            f"{engine} could not build {tag} on {base}: {_last_line(done.stderr)}; "
            "if the base is missing, build modelboxes/Dockerfile or pass --base"
        )
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else tag


def _quiet_environment() -> dict[str, str]:
    """Return the environment without BuildKit: the client may lack the plugin, and the Dockerfile does not need it."""
    return {"DOCKER_BUILDKIT": "0", **os.environ}


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:500] if lines else "it said nothing"
