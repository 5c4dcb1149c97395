"""Backend that the settings choose for the boxes of jobs, and the specification of a job's box."""

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from rdukit.box.settings import GRPC
from rdukit.errors import InvalidArgument
from rdukit.interfaces import SystemClock
from rdukit.settings import resolve
from rdukit_platform.backends.box_variables import named_variables
from rdukit_platform.backends.contract import BoxBackend, BoxFence, BoxLimits, BoxOwner, BoxSpec, ClaimedFolder
from rdukit_platform.backends.engines import DockerBackend, PodmanBackend
from rdukit_platform.backends.kubernetes import KubernetesBackend
from rdukit_platform.backends.process import ProcessBackend
from rdukit_platform.backends.slurm import SlurmBackend, open_slurm
from rdukit_platform.backends.slurm_place import SLURM_WAIT_S
from rdukit_platform.backends.warm import WarmBoxes
from rdukit_platform.settings import (
    BOX_BACKEND,
    BOX_CLAIM,
    BOX_COMMAND,
    BOX_DISK,
    BOX_IMAGE,
    BOX_MEMORY,
    BOX_PIDS,
    BOX_POD,
    KUBERNETES,
    PROCESSES,
    SLURM,
    WARM_BOXES,
    Home,
    box_command,
)

#: Each backend by its name in the settings.
BACKENDS: Final[Mapping[str, Callable[..., BoxBackend]]] = {
    "process": ProcessBackend,
    "docker": DockerBackend,
    "podman": PodmanBackend,
    "kubernetes": KubernetesBackend,
    "slurm": SlurmBackend,
}
#: Variable with the address of each engine.
ENGINES: Final = {"docker": "DOCKER_HOST", "podman": "CONTAINER_HOST"}
#: Placeholder for the box's name in the setting of the image, if each box has its own image.
NAME_MARK: Final = "{box}"


@dataclass(frozen=True, slots=True)
class OwnBox:
    """Source of a tenant's own box: one of folder and image."""

    #: The attempt's copy of its folder.
    folder: Path | None = None
    #: Digest of the image.
    image: str | None = None


@dataclass(frozen=True, slots=True)
class BoxRules:
    """Rules for the boxes of all jobs of a worker."""

    limits: BoxLimits
    #: Variables in addition to those of the job.
    environment: Mapping[str, str] = field(default_factory=dict)
    #: With ``NAME_MARK`` each box runs from its own image, otherwise all from the backend's.
    image: str = ""
    #: Whether boxes listen on sockets in their own folders, so that other users reach no port.
    has_sockets: bool = False


@dataclass(frozen=True, slots=True)
class BoxPlace:
    """Resources of a box for a backend with a queue; as in ``BoxSpec``."""

    tiles: int = 0
    run_limit_s: float | None = None
    on_wait: Callable[[Mapping[str, object], str, str], None] | None = None


#: Variable of job boxes that are processes: gRPC is unused there, and its server takes a tenth of the start.
WITHOUT_GRPC: Final[Mapping[str, str]] = {GRPC.variable: "false"}


def spec_of(
    rules: BoxRules,
    box: str,
    owner: BoxOwner,
    state: Path,
    inputs: Path,
    output: Path,
    environment: Mapping[str, str],
    sockets: Sequence[Path] = (),
    descriptors: Sequence[int] = (),
    own: OwnBox | None = None,
    fence: BoxFence | None = None,
    place: BoxPlace = BoxPlace(),
    part: int | None = None,
) -> BoxSpec:
    """Return the box of one attempt (pure).

    Args:
        own: source, if the job's tenant installed the box.
        owner: the job and the attempt's number; only the newest attempt of a job may have a box.
        state: the attempt's own folder.
        output: folder of outputs, which outlives the attempt.
        fence: fence of the job's tenant.
        place: information for a foreign queue.
        part: number of the part of a job on several nodes.
    """
    return BoxSpec(
        box=box,
        state=state,
        mounts=[inputs] if own is None or own.folder is None else [inputs, own.folder],
        environment={**rules.environment, **environment},
        limits=rules.limits,
        owner=owner,
        # A tenant's own folder runs in the backend's image, which has no particular box.
        image=_image_of(rules, box) if own is None else own.image,
        folder=None if own is None else own.folder,
        descriptors=descriptors,
        outputs=[output],
        sockets=sockets,
        has_sockets=rules.has_sockets,
        fence=fence,
        tiles=place.tiles,
        run_limit_s=place.run_limit_s,
        part=part,
        on_wait=place.on_wait,
    )


def _image_of(rules: BoxRules, box: str) -> str | None:
    return rules.image.replace(NAME_MARK, box) if NAME_MARK in rules.image else None


def open_backend(home: Home, *, is_worker: bool = False) -> tuple[BoxBackend, BoxRules]:
    """Return the configured backend, connected, and the rules for its boxes.

    ``is_worker``: many boxes will be started, so a fork server is kept if the settings allow it.

    Raises:
        InvalidArgument: a setting is not valid, or the backend lacks a package.
        Unavailable: its engine does not answer.
    """
    name, image = resolve(BOX_BACKEND), resolve(BOX_IMAGE)
    environment = named_variables()
    limits = BoxLimits(memory_bytes=resolve(BOX_MEMORY) or None, pids=resolve(BOX_PIDS) or None)
    if name in ENGINES:  # processes have the fence's limit, Pods the claim's
        limits = replace(limits, disk_bytes=resolve(BOX_DISK) or None)
    rules = BoxRules(limits, environment)
    make = BACKENDS[name]
    if name in PROCESSES:
        if image:
            raise InvalidArgument(
                f"{BOX_IMAGE.name} is {image!r}, but boxes are processes; also set {BOX_BACKEND.name}"
            )
        rules = replace(rules, has_sockets=True)
        if name == SLURM:
            return open_slurm(box_command(), resolve(SLURM_WAIT_S)), rules
        # By machine: a home folder may be shared, and process ids are valid on one machine only.
        records = home.run / "boxes" / socket.gethostname()
        # Only rdukit's own command can fork.
        is_warm = is_worker and resolve(WARM_BOXES) in ({"always"} if resolve(BOX_COMMAND) else {"auto", "always"})
        warm = WarmBoxes(box_command(), environment, SystemClock()) if is_warm else None
        return make(records=records, command=box_command(), warm=warm), rules
    if name == KUBERNETES:
        if NAME_MARK in image:
            raise InvalidArgument(
                f"{BOX_IMAGE.name} is {image!r}; with {KUBERNETES} expected a single image with all boxes"
            )
        template = Path(resolve(BOX_POD)) if resolve(BOX_POD) else None
        named = {"image": image} if image else {}
        folder = read_claim(resolve(BOX_CLAIM), home.folder)
        return make(folders=[folder], template=template, **named), replace(rules, has_sockets=True)
    # An engine on another machine may share folders, but not sockets in them.
    is_here = "://" not in (host := os.environ.get(ENGINES[name], "")) or host.startswith("unix://")
    rules = replace(rules, image=image, has_sockets=is_here)
    return make(image) if image and NAME_MARK not in image else make(), rules


def read_claim(text: str, home: Path) -> ClaimedFolder:
    """Return the claim that a home folder lies in, from ``NAME:PATH`` (pure).

    Raises:
        InvalidArgument: the text has another form, or the home folder lies elsewhere.
    """
    name, _, path = text.partition(":")
    if not (name and path.startswith("/")):
        raise InvalidArgument(
            f"{BOX_CLAIM.name} is {text!r}; with {BOX_BACKEND.name} {KUBERNETES} expected the claim that contains the "
            "home folder and its mount path, as NAME:PATH"
        )
    if not home.is_relative_to(path):
        raise InvalidArgument(f"{BOX_CLAIM.name} is {text!r}, but the home folder {home} is not in {path}")
    return ClaimedFolder(Path(path), name)
