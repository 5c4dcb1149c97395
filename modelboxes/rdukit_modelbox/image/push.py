"""Copy an image from a layout to another layout or a registry.

Source: OCI Distribution Specification 1.1, "Push"; the token flow is Docker Registry's "Token Authentication".
"""

import base64
import json
import re
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx

from rdukit.errors import InvalidArgument, PermissionDenied, Unavailable
from rdukit_modelbox.image.layout import ImageLayout
from rdukit_modelbox.image.media import MANIFEST_TYPE, Descriptor
from rdukit_modelbox.image.verify import verify_layout

_BLOCK: Final = 1 << 20
_TAG: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}\Z")
_REPOSITORY: Final = re.compile(r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*\Z")


@dataclass(frozen=True, slots=True)
class Pushed:
    """A finished copy: its target, the manifest's digest, and the numbers of sent and existing blobs."""

    target: str
    digest: str
    sent: int
    known: int


@dataclass(frozen=True, slots=True)
class RegistryTarget:
    """``docker://HOST[:PORT]/REPOSITORY[:TAG]``."""

    host: str
    repository: str
    tag: str


def push_image(layout: Path, reference: str | None, to: str, is_plain_http: bool = False) -> Pushed:
    """Check the layout, then copy its image ``reference`` to ``oci:FOLDER[:NAME]`` or ``docker://HOST/NAME[:TAG]``.

    Raises:
        InvalidArgument: the layout is damaged, or the target is written otherwise.
        NotFound: no such layout or image.
        PermissionDenied: the registry refuses; credentials come from docker's ``config.json``.
        Unavailable: the registry cannot be reached or answers with an error.
    """
    verify_layout(layout)
    source = ImageLayout.open(layout)
    image = source.find(reference)
    if to.startswith("oci:"):
        folder, _, name = to.removeprefix("oci:").partition(":")
        return _copy(source, image, Path(folder), name or reference or "latest")
    target = parse_target(to)
    return _push(source, image, target, is_plain_http)


def parse_target(to: str) -> RegistryTarget:
    """Read a registry's target.

    Raises:
        InvalidArgument: the text has another form.
    """
    address, slash, path = to.removeprefix("docker://").partition("/")
    repository, _, tag = path.partition(":")
    tag = tag or "latest"
    if not to.startswith("docker://") or not slash or not _REPOSITORY.match(repository) or not _TAG.match(tag):
        raise InvalidArgument(
            f"target {to!r} is not valid; expected oci:FOLDER[:NAME], docker://HOST[:PORT]/REPOSITORY[:TAG]"
        )
    return RegistryTarget(address, repository, tag)


def _copy(source: ImageLayout, image: Descriptor, folder: Path, name: str) -> Pushed:
    target = ImageLayout.create(folder)
    sent = known = 0
    for blob in [*_blobs(source, image), image]:
        if target.blob_file(blob.digest).exists():
            known += 1
        else:
            target.take(source, blob)
            sent += 1
    target.set_reference(name, image, {})
    return Pushed(f"oci:{folder}:{name}", image.digest, sent, known)


def _blobs(source: ImageLayout, image: Descriptor) -> Iterator[Descriptor]:
    manifest, _ = source.read_image(image)
    for part in (*manifest["layers"], manifest["config"]):
        yield Descriptor.from_json(part)


def _push(source: ImageLayout, image: Descriptor, target: RegistryTarget, is_plain_http: bool) -> Pushed:
    url = f"{'http' if is_plain_http else 'https'}://{target.host}"
    sent = known = 0
    try:
        with httpx.Client(base_url=url, timeout=60.0, auth=_RegistryAuth(target), follow_redirects=True) as client:
            path = f"/v2/{target.repository}"
            for blob in _blobs(source, image):
                found = client.head(f"{path}/blobs/{blob.digest}")
                if found.status_code == 200:
                    known += 1
                    continue
                started = _checked(client.post(f"{path}/blobs/uploads/"), 202)
                place = httpx.URL(url).join(started.headers["location"]).copy_merge_params({"digest": blob.digest})
                headers = {"Content-Type": "application/octet-stream", "Content-Length": str(blob.size)}
                _checked(client.put(place, content=_read(source.blob_file(blob.digest)), headers=headers), 201)
                sent += 1
            data = source.read_blob(image)
            headers = {"Content-Type": image.media_type or MANIFEST_TYPE}
            _checked(client.put(f"{path}/manifests/{target.tag}", content=data, headers=headers), 201)
    except httpx.HTTPError as cause:
        raise Unavailable(f"registry {target.host} cannot be reached: {cause}") from cause
    return Pushed(f"docker://{target.host}/{target.repository}:{target.tag}", image.digest, sent, known)


def _read(path: Path) -> Iterator[bytes]:
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            yield block


def _checked(response: httpx.Response, status: int) -> httpx.Response:
    if response.status_code == status:
        return response
    words = f"{response.request.method} {response.request.url.path}: {response.status_code} {response.text[:300]}"
    if response.status_code in {401, 403}:
        raise PermissionDenied(f"the registry refuses {words}; log in by `docker login` or `skopeo login` first")
    raise Unavailable(f"the registry answered {words}")


class _RegistryAuth(httpx.Auth):
    """Authentication on demand: Basic, or a token from the server that the registry names."""

    def __init__(self, target: RegistryTarget) -> None:
        self._target = target
        self._header: str | None = None

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Answer a 401 once; bodies of uploads are sent only after an authenticated request."""
        if self._header is not None:
            request.headers["Authorization"] = self._header
        response = yield request
        if response.status_code != 401 or self._header is not None:
            return
        scheme, _, rest = response.headers.get("www-authenticate", "").partition(" ")
        basic = find_credentials(self._target.host, _docker_config())
        if scheme.lower() == "bearer":
            fields = dict(re.findall(r'(\w+)="([^"]*)"', rest))
            query = {"scope": f"repository:{self._target.repository}:pull,push", "service": fields.get("service", "")}
            url = httpx.URL(fields.get("realm", "")).copy_merge_params(query)
            headers = {"Authorization": f"Basic {basic}"} if basic and urlsplit(str(url)).scheme == "https" else {}
            answer = yield httpx.Request("GET", url, headers=headers)
            answer.read()
            token = json.loads(answer.content) if answer.status_code == 200 else {}
            self._header = f"Bearer {token.get('token') or token.get('access_token') or ''}"
        elif basic:
            self._header = f"Basic {basic}"
        else:
            return
        request.headers["Authorization"] = self._header
        yield request


def find_credentials(host: str, config: Mapping[str, object]) -> str | None:
    """``user:password`` in base64 for ``host``, from docker's configuration; credential helpers are not used."""
    entries = config.get("auths")
    for name in (host, f"https://{host}", f"https://{host}/v1/"):
        entry = entries.get(name) if isinstance(entries, dict) else None
        if isinstance(entry, dict):
            if entry.get("auth"):
                return str(entry["auth"])
            if entry.get("username"):
                return base64.b64encode(f"{entry['username']}:{entry.get('password', '')}".encode()).decode()
    return None


def _docker_config() -> dict[str, object]:
    from rdukit.settings import resolve
    from rdukit_modelbox.settings import REGISTRY_CONFIG

    try:
        value = json.loads(Path(resolve(REGISTRY_CONFIG)).expanduser().read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
