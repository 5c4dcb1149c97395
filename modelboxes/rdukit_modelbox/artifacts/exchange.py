"""A child's work around a verb: fetch remote inputs, screen all inputs, upload outputs."""

from collections.abc import Mapping
from pathlib import Path

from rdukit.errors import InvalidArgument
from rdukit.files.atomic import sha256_of_file
from rdukit.settings import resolve
from rdukit_modelbox.artifacts import settings
from rdukit_modelbox.artifacts.download import Watch
from rdukit_modelbox.artifacts.mounts import Exchange
from rdukit_modelbox.artifacts.reference import parse_output, parse_reference
from rdukit_modelbox.artifacts.s3_source import make_client, upload
from rdukit_modelbox.artifacts.screen import screen
from rdukit_modelbox.artifacts.store import ArtifactStore, current_limits
from rdukit_modelbox.verbs.context import Progress, VerbContext


def bring_inputs(context: VerbContext, inputs: Mapping[str, Path], exchange: Exchange) -> dict[str, Path]:
    """Fetch and screen the inputs. Returns the path of each.

    Raises:
        RdukitError: an artifact cannot be fetched or is refused; the message has the slot's name.
        Cancelled: meanwhile.
    """
    store, kinds = ArtifactStore(Path(exchange.store)), exchange.kinds
    remote, digests, roots = exchange.remote, exchange.digests, [Path(root) for root in exchange.roots]
    found = dict(inputs)
    for slot, text in remote.items():
        reference = parse_reference(text, f"input {slot!r}")
        context.log(f"fetching {slot} from {reference.uri}")
        found[slot] = store.fetch(reference, kinds.get(slot, "any"), _watch(context, f"fetch {slot}"))
    for slot, digest in digests.items():
        path = found[slot]
        if not path.is_file():
            raise InvalidArgument(f"input {slot!r}: a digest is only for a file, and {path} is not a file")
        if (given := sha256_of_file(path)) != digest:
            raise InvalidArgument(f"input {slot!r}: {path} has sha256 {given}; expected {digest}")
    limits, legal_roots = current_limits(), [root.resolve() for root in (*roots, store.folder)]
    for slot, path in found.items():
        screen(path, f"input {slot!r}", legal_roots, limits)
        context.check_cancelled()
    return found


def send_outputs(context: VerbContext, outputs: Mapping[str, Path], target: str) -> dict[str, str]:
    """Upload each output below the ``s3://`` prefix ``target``; a folder's files keep their relative paths.

    Returns:
        The outputs' URIs.
    Raises:
        InvalidArgument: larger than ``artifacts.max_bytes``.
        NotFound, PermissionDenied, Unavailable: by the server.
        Cancelled: between two files.
    """
    reference = parse_output(target)
    client = make_client(resolve(settings.TIMEOUT_S))
    files = [(slot, path, file) for slot, path in outputs.items() for file in _files(path)]
    total, limit = sum(file.stat().st_size for _, _, file in files), resolve(settings.MAX_BYTES)
    if total > limit:
        raise InvalidArgument(f"the outputs have {total} bytes; expected up to {limit} (artifacts.max_bytes)")
    watch, done = _watch(context, "upload"), 0
    for _, path, file in files:
        context.check_cancelled()
        key = f"{reference.path}{path.name}" + (f"/{file.relative_to(path).as_posix()}" if path.is_dir() else "")
        upload(client, file, reference.host, key, sha256_of_file(file), lambda count: None)
        done += file.stat().st_size
        watch(done, total)
    base = f"s3://{reference.host}/{reference.path}"
    return {slot: f"{base}{path.name}" + ("/" if path.is_dir() else "") for slot, path in outputs.items()}


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())


def _watch(context: VerbContext, stage: str) -> Watch:
    def watch(done: int, size: int) -> None:
        context.check_cancelled()
        if size:
            context.progress(Progress(stage, done, size))

    return watch
