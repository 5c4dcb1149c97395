"""Browser of the console: a platform with its gateway, a client without JavaScript, and checks of pages."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser

import httpx
import pytest

from rdukit_platform.api.context import Platform
from rdukit_platform.tenants.service import create_tenant, find_tenant
from rdukit_platform.tenants.tokens import create_token
from support.platform.gateway import Example, opened_platform, serving
from support.platform.processes import short_folder

VOID = {"meta", "link", "input", "br", "hr", "img", "rect", "line", "circle", "path"}


class Tags(HTMLParser):
    """Collects what is wrong with a page's tags, its links and anything inline."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: set[str] = set()
        self.wrong: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = dict(attrs)
        self.wrong += [f"<{tag} {name}>" for name in names if name == "style" or name.startswith("on")]
        if tag in {"script", "link"} and not (names.get("src") or names.get("href") or "").startswith("/console/"):
            self.wrong.append(f"<{tag}> that is not the console's own file")
        if tag == "a" and (names.get("href") or "").startswith("/console/"):
            self.links.add(str(names["href"]))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}> closes nothing")


def check_page(text: str) -> Tags:
    """Return a page's tags, all of which are closed and none inline."""
    tags = Tags()
    tags.feed(text)
    assert tags.wrong == []
    assert tags.open == []
    return tags


@contextmanager
def console_platform() -> Iterator[Platform]:
    """Yield a platform in a folder of its own, with its first token; nothing of it runs."""
    with short_folder() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RDUKIT_HOME", str(folder))
        with opened_platform() as platform:
            yield platform


@contextmanager
def browser(platform: Platform) -> Iterator[httpx.Client]:
    """Yield a browser without JavaScript at the gateway's socket; it follows redirects."""
    with (
        serving(platform) as address,
        httpx.Client(base_url=address, follow_redirects=True, timeout=60.0) as client,
    ):
        yield client


def example_of(platform: Platform) -> Example:
    """Return the examples of the tenant ``default``."""
    with platform.database.read() as session:
        tenant = find_tenant(session, "default")
        assert tenant is not None
        return Example(platform.database, platform.store, tenant.id, time.time())


def log_in(client: httpx.Client, token: str) -> None:
    """Begin a session, which leads to the page that was asked for."""
    answer = client.post("/console/login", data={"token": token, "next": "/console/nodes"}, follow_redirects=False)
    assert answer.status_code == 303
    assert answer.headers["location"] == "/console/nodes"


def first_token(platform: Platform) -> str:
    """Return the token of the administrator of ``default``."""
    return platform.home.token_file.read_text().strip()


def other_token(platform: Platform, scopes: list[str]) -> str:
    """Return a token of the tenant ``other``, which is created if it is missing."""
    with platform.database.write() as session:
        tenant = find_tenant(session, "other") or create_tenant(session, "other", time.time())
        return create_token(session, tenant.id, "t", scopes, time.time())[1]
