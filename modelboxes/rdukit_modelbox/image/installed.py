"""A base image made from this installation: the interpreter, rdukit's required packages, and their shared libraries;
without shell, package manager and root.

It runs on any Linux of the same processor; its C library is this machine's. Development tools are left out.
"""

import platform
import re
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

from rdukit.box.image import STATE_FOLDER, USER_ID
from rdukit.errors import InvalidArgument
from rdukit.files.atomic import sha256_of
from rdukit_modelbox.image.bytecode import bytecode_entries, imported_files
from rdukit_modelbox.image.config import empty_config, with_layers
from rdukit_modelbox.image.layer import LayerEntry
from rdukit_modelbox.image.layout import BASE_REFERENCE, ImageLayout, manifest_blob
from rdukit_modelbox.image.media import CONFIG_TYPE, MANIFEST_TYPE, Descriptor, compact_json, machine_name
from rdukit_modelbox.image.sbom import component_of, make_sbom
from rdukit_modelbox.image.shared_objects import find_libraries

ROOT: Final = "/opt/rdukit"
FINGERPRINT: Final = "dev.rdukit.base.fingerprint"
#: Parts of the standard library that a server does not need.
_LEFT_OUT: Final = {"test", "idlelib", "tkinter", "turtledemo", "lib2to3", "ensurepip", "site-packages", "__pycache__"}
#: Parts of packages for tests and compilers; the image has no compiler.
_WITHOUT: Final = {("torch", "test"), ("torch", "include"), ("pyarrow", "tests"), ("pyarrow", "include")}
_SKIPPED_SUFFIXES: Final = (".pyc", ".pyo", ".a", ".pyi", ".pxd", ".pyx")


def make_installed_base(layout: ImageLayout, seconds: int) -> Descriptor:
    """Write the base into ``layout`` as ``rdukit-base``, or reuse the one of the same installation.

    Raises:
        InvalidArgument: not Linux, or a package lacks the list of its files.
    """
    if sys.platform != "linux":
        raise InvalidArgument(f"an image cannot be built from the packages of {sys.platform}; expected linux")
    packages = required_distributions("rdukit")
    fingerprint = _fingerprint(packages, seconds)
    known = layout.references().get(BASE_REFERENCE)
    if known is not None and known.annotations.get(FINGERPRINT) == fingerprint:
        return known
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    own = [package for package in packages if package.metadata["Name"] == "rdukit"]
    torch = [package for package in packages if package.metadata["Name"] == "torch"]
    others = [package for package in packages if package not in own and package not in torch]
    site = f"{ROOT}/lib/{version}/site-packages"
    files = {name: list(_package_entries(group, site)) for name, group in (("torch", torch), ("others", others))}
    interpreter = list(_interpreter_entries(version))
    own_files = [*_package_entries(own, site), *_own_files(packages)]
    imported = imported_files()
    libraries = list(_library_entries([*interpreter, *files["torch"], *files["others"]]))
    groups = {
        "interpreter and shared libraries": [*interpreter, *libraries, *_system_entries()],
        "torch": files["torch"],
        "packages": files["others"],
        "bytecode": list(bytecode_entries([*interpreter, *files["torch"], *files["others"]], imported)),
        "rdukit": [*own_files, *bytecode_entries(own_files, imported)],
    }
    layers = {comment: layout.add_layer(entries, seconds) for comment, entries in groups.items() if entries}
    empty = empty_config(machine_name(platform.machine()), f"{ROOT}/bin:/usr/bin:/bin", _tini() is not None)
    config = with_layers(empty, [layer.diff_id for layer in layers.values()], list(layers), seconds)
    config["config"]["Volumes"] = {STATE_FOLDER: {}}
    config["config"] = {key: value for key, value in config["config"].items() if value is not None}
    config_blob = layout.add_blob(CONFIG_TYPE, compact_json(config))
    data = manifest_blob(config_blob, [layer.descriptor for layer in layers.values()], {FINGERPRINT: fingerprint})
    image = layout.add_blob(MANIFEST_TYPE, data)
    layout.set_reference(BASE_REFERENCE, image, {FINGERPRINT: fingerprint})
    return image


def required_distributions(name: str) -> list[Distribution]:
    """Return ``name`` and all its requirements, without extras, sorted by name.

    Raises:
        InvalidArgument: a requirement is not installed.
    """
    found: dict[str, Distribution] = {}
    waiting = [Requirement(name)]
    while waiting:
        requirement = waiting.pop()
        key = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if key not in found:
            try:
                found[key] = distribution(requirement.name)
            except PackageNotFoundError as cause:
                raise InvalidArgument(f"{requirement.name} is required but not installed; install it first") from cause
        elif not requirement.extras:
            continue
        for text in found[key].requires or ():
            needed = Requirement(text)
            extras = requirement.extras or {""}
            is_needed = needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras)
            if is_needed and (re.sub(r"[-_.]+", "-", needed.name).lower() not in found or needed.extras):
                waiting.append(needed)
    return [found[key] for key in sorted(found)]


def _fingerprint(packages: Sequence[Distribution], seconds: int) -> str:
    """Hash the interpreter, the packages' versions and rdukit's own files (an editable install keeps its version)."""
    names = [f"{package.metadata['Name']}=={package.version}" for package in packages]
    own = [f"{entry.path} {sha256_of(_content(entry))}" for entry in _own_files(packages)]
    return sha256_of("\n".join([sys.version, str(seconds), *names, *sorted(own)]).encode())


def _content(entry: LayerEntry) -> bytes:
    return entry.data if entry.data is not None else entry.source.read_bytes() if entry.source is not None else b""


def _package_entries(packages: Sequence[Distribution], site: str) -> Iterator[LayerEntry]:
    for package in packages:
        if package.files is None:
            raise InvalidArgument(f"package {package.metadata['Name']} has no list of its files; install it by pip")
        for file in package.files:
            parts = file.parts
            if ".." in parts or "__pycache__" in parts or file.suffix in _SKIPPED_SUFFIXES:
                continue
            if file.name in {"RECORD", "direct_url.json", "INSTALLER", "REQUESTED"} or file.suffix == ".pth":
                continue
            if parts[:2] in _WITHOUT:
                continue
            source = Path(str(file.locate()))
            if source.is_file():
                yield LayerEntry(f"{site}/{file.as_posix()}", source=source, is_executable=_is_executable(source))


def _own_files(packages: Sequence[Distribution]) -> Iterator[LayerEntry]:
    """Yield rdukit's packages (from a checkout or an installation), the command, and the bill of materials."""
    site = f"{ROOT}/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    for name in (
        "rdukit",
        "sambaflow",
        "rdukit_compiler",
        "rdukit_node",
        "rdukit_runtime",
        "rdukit_serving",
        "rdukit_modelbox",
        "rdukit_platform",
        "rdukit_zoo",
    ):
        folder = _folder_of(name)
        if folder is None:
            continue
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and path.suffix not in _SKIPPED_SUFFIXES:
                yield LayerEntry(f"{site}/{name}/{path.relative_to(folder).as_posix()}", source=path)
    program = f"#!{ROOT}/bin/python3\nimport sys\nfrom rdukit.cli import main\nsys.exit(main())\n"
    yield LayerEntry(f"{ROOT}/bin/rdukit", data=program.encode(), is_executable=True)
    own = next(package for package in packages if package.metadata["Name"] == "rdukit")
    sbom = make_sbom({"name": "rdukit", "version": own.version}, map(component_of, packages))
    yield LayerEntry(f"{ROOT}/share/sbom.cdx.json", data=sbom)


def _folder_of(package: str) -> Path | None:
    """Find the folder of one of rdukit's packages without importing it."""
    for root in sys.path:
        folder = Path(root) / package
        if (folder / "__init__.py").is_file():
            return folder
    return None


def _interpreter_entries(version: str) -> Iterator[LayerEntry]:
    executable = Path(sys.executable).resolve()
    yield LayerEntry(f"{ROOT}/bin/{version}", source=executable, is_executable=True)
    for name in ("python", "python3"):
        yield LayerEntry(f"{ROOT}/bin/{name}", target=version)
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*")):
        parts = path.relative_to(library).parts
        if _LEFT_OUT & set(parts) or parts[0].startswith("config-") or not path.is_file():
            continue
        if path.suffix not in _SKIPPED_SUFFIXES:
            yield LayerEntry(f"{ROOT}/lib/{version}/{'/'.join(parts)}", source=path)


def _library_entries(entries: Sequence[LayerEntry]) -> Iterator[LayerEntry]:
    programs = [entry.source for entry in entries if entry.source is not None and _may_be_elf(entry)]
    tini = _tini()
    if tini is not None:
        programs.append(tini)
        yield LayerEntry(f"{ROOT}/bin/tini", source=tini, is_executable=True)
    # An absolute run path finds a shared libpython here; the system's must not replace it.
    folder, name = sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("INSTSONAME")
    library = Path(str(folder)) / str(name)
    given = {library.name: library} if ".so" in library.name and library.is_file() else {}
    for path, source in find_libraries(programs, given):
        yield LayerEntry(path, source=source, is_executable=True)


def _may_be_elf(entry: LayerEntry) -> bool:
    name = entry.path.rpartition("/")[2]
    return entry.is_executable or ".so" in name


def _system_entries() -> Iterator[LayerEntry]:
    yield LayerEntry("/etc/passwd", data=f"root:x:0:0::/:/\nrdukit:x:{USER_ID}:{USER_ID}::{STATE_FOLDER}:/\n".encode())
    yield LayerEntry("/etc/group", data=f"root:x:0:\nrdukit:x:{USER_ID}:\n".encode())
    yield LayerEntry("/etc/nsswitch.conf", data=b"passwd: files\ngroup: files\nhosts: files dns\n")
    yield LayerEntry("/tmp", mode=0o1777)
    for folder in ("/dev", "/proc", "/sys", "/run"):
        yield LayerEntry(folder)
    yield LayerEntry(STATE_FOLDER, user=USER_ID, mode=0o700)


def _tini() -> Path | None:
    found = shutil.which("tini")
    return Path(found).resolve() if found else None


def _is_executable(path: Path) -> bool:
    return bool(path.stat().st_mode & 0o100)
