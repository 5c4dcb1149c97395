"""Folders as artifacts: what comes back is what went in, or the refusal names the file."""

import os
import random
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rdukit.errors import InvalidArgument
from rdukit_platform.client.artifacts import add_artifact, fetch_artifact
from rdukit_platform.client.http import ApiClient
from support import shows
from support.forked import run_rdukit_forked
from support.platform.gateway import GatewayUnderTest, gateway_under_test
from support.platform.processes import short_folder

pytestmark = shows("artifact", "artifacts")

#: Parts of names that programs on the way have taken for something else.
WORDS = (
    "a",
    "b",
    'a"b',
    "a\nb",
    "a\tb",
    "%22",
    " ",
    "é",
    "e\u0301",
    "'",
    "*",
    "~",
    "-x",
    ".hidden",
    "a b",
    "ä" * 60,
    "n" * 255,
)


@pytest.fixture(scope="module")
def gateway() -> Iterator[GatewayUnderTest]:
    with short_folder() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RDUKIT_HOME", str(folder))
        with gateway_under_test() as running:
            patch.setenv("RDUKIT_GATEWAY_URL", running.url)
            yield running


@pytest.fixture
def client(gateway: GatewayUnderTest) -> Iterator[ApiClient]:
    with ApiClient(gateway.url, gateway.admin) as made:
        yield made


Tree = dict[bytes, tuple[str, object]]


def read(folder: Path) -> Tree:
    """Return all that is below a folder: files by content and whether they are programs, others by their kind."""
    found: Tree = {}
    for root, folders, files in os.walk(os.fsencode(folder)):
        for name in folders + files:
            path = os.path.join(root, name)
            mode = os.lstat(path).st_mode
            key = os.path.relpath(path, os.fsencode(folder))
            if stat.S_ISREG(mode):
                found[key] = ("file", (Path(os.fsdecode(path)).read_bytes(), bool(mode & stat.S_IXUSR)))
            else:
                found[key] = (stat.filemode(mode)[0], None)
    return found


def make_tree(draw: random.Random, folder: Path, depth: int = 0) -> None:
    folder.mkdir()
    for name in draw.sample(WORDS, draw.randrange(1 if depth == 0 else 0, 5)):
        path = folder / name
        if depth < 3 and draw.random() < 0.4:
            make_tree(draw, path, depth + 1)
            continue
        path.write_bytes(draw.randbytes(draw.choice((0, 1, 300))))
        if draw.random() < 0.3:
            path.chmod(0o755)


def there_and_back(client: ApiClient, folder: Path, target: Path) -> None:
    if not any(path.is_file() for path in folder.rglob("*")):
        with pytest.raises(InvalidArgument, match="has 0 files"):
            add_artifact(client, folder, "data")
        return
    made = add_artifact(client, folder, "data")
    fetch_artifact(client, made["id"], target)
    assert read(target) == read(folder)
    assert not [path for path in target.parent.iterdir() if path.name.endswith(".part")]


def test_a_random_tree_comes_back_as_it_was(client: ApiClient, tmp_path: Path) -> None:
    for seed in range(12):
        draw, place = random.Random(seed), tmp_path / str(seed)
        place.mkdir()
        make_tree(draw, place / "tree")
        there_and_back(client, place / "tree", place / "got")


@pytest.mark.long
@pytest.mark.parametrize("first", range(100, 2100, 200))
def test_many_random_trees_come_back_as_they_were(client: ApiClient, tmp_path: Path, first: int) -> None:
    for seed in range(first, first + 200):
        draw, place = random.Random(seed), tmp_path / str(seed)
        place.mkdir()
        make_tree(draw, place / "tree")
        there_and_back(client, place / "tree", place / "got")


def test_thousands_of_small_files_come_in_few_requests(client: ApiClient, tmp_path: Path) -> None:
    folder, sent = tmp_path / "small", []
    folder.mkdir()
    for number in range(1200):
        (folder / f"{number}.txt").write_bytes(str(number).encode())
    (folder / "large").write_bytes(bytes(5 << 20))
    client._http.event_hooks["request"] = [lambda request: sent.append(request.url.path)]
    made = add_artifact(client, folder, "data")
    assert len(sent) < 10, sent
    assert len(client.get(f"/v1/artifacts/{made['id']}")["files"]) == 1201


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda f: (f / "link").symlink_to("/etc/hostname"), "link"),
        (lambda f: (f / "link").symlink_to("nowhere"), "link"),
        (lambda f: os.mkfifo(f / "pipe"), "pipe"),
        (lambda f: open(os.fsencode(f) + b"/\xff\xfe", "w").close(), "udcff"),
        (lambda f: (f / "back\\slash").touch(), "back"),
        (lambda f: (f / "base").unlink(), "has 0 files"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_name_and_nothing_of_it_is_kept(
    gateway: GatewayUnderTest, tmp_path: Path, make: Callable[[Path], object], named: str
) -> None:
    folder = tmp_path / "case"
    folder.mkdir()
    (folder / "base").write_bytes(b"x")
    make(folder)

    def kept() -> tuple[object, ...]:
        artifacts = gateway.ask("GET", "/v1/artifacts", gateway.admin).json()["artifacts"]
        return [artifact["id"] for artifact in artifacts], sorted(gateway.platform.store.pieces.ids())

    before = kept()
    done = run_rdukit_forked(["artifact", "add", str(folder), "--kind", "data"])
    assert (done.returncode != 0, named in done.stderr) == (True, True), done.stderr
    assert "Traceback" not in done.stderr
    assert kept() == before


def test_files_that_come_together_have_to_be_whole(gateway: GatewayUnderTest) -> None:
    token = gateway.token("lab", "read", "write")
    files = [{"path": name, "bytes": size, "digest": "0" * 64} for name, size in (("a", 2), ("b", 0), ("c", 3))]
    body = {"kind": "data", "name": "d", "folder": True, "files": files}
    upload = gateway.ask("POST", "/v1/uploads", token, json=body).json()["id"]
    place = f"/v1/uploads/{upload}/files"
    assert gateway.ask("PUT", f"{place}?first=0", token, content=b"aaccc").json() == {"next": 3}
    assert gateway.ask("PUT", f"{place}?first=0", token, content=b"aaccc").json() == {"next": 3}, "an answer was lost"
    for query, data, status in ((0, b"aac", 400), (2, b"cccc", 404), (7, b"x", 404)):
        assert gateway.ask("PUT", f"{place}?first={query}", token, content=data).status_code == status


@pytest.mark.parametrize(
    ("name", "is_folder"),
    [("n" * 300, False), ("n" * 300, True), ("ä" * 130, True), ("/".join(["d" * 200] * 20), True)],
)
def test_a_name_that_no_file_system_takes_is_refused_at_upload(
    gateway: GatewayUnderTest, name: str, is_folder: bool
) -> None:
    form = {"kind": "data", "folder": str(is_folder).lower()}
    sent = gateway.refused("POST", "/v1/artifacts", gateway.admin, files=[("files", (name, b"x"))], data=form)
    file = {"path": name, "bytes": 1, "digest": "0" * 64}
    body = {"kind": "data", "name": "d", "folder": is_folder, "files": [file]}
    for status, message in (sent, gateway.refused("POST", "/v1/uploads", gateway.admin, json=body)):
        assert (status, name[:80] in message, "bytes; expected up to 255" in message) == (400, True, True), message
