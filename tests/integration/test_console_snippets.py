"""Snippets and empty lists of the console: what they print is run."""

import html
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from rdukit.cli.app import cli
from rdukit_platform.api.context import Platform
from rdukit_platform.console.navigation import GROUPS
from rdukit_platform.console.snippets import Readable
from rdukit_platform.jobs.service import get_job
from support import shows
from support.platform.console import browser, check_page, console_platform, example_of, first_token, log_in, other_token
from support.printed_commands import check_command

pytestmark = shows("console", "python-client")

PRE = re.compile(r'<pre class="command" tabindex="0">(.*?)</pre>', re.DOTALL)


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    with console_platform() as opened:
        yield opened


@pytest.fixture(scope="module")
def client(platform: Platform) -> Iterator[httpx.Client]:
    with browser(platform) as opened:
        log_in(opened, first_token(platform))
        yield opened


@pytest.fixture(scope="module")
def pages(platform: Platform) -> dict[Readable, str]:
    """A page of each kind of thing that snippets read, by its path."""
    example = example_of(platform)
    _, trained = example.run_pipeline()
    example.promote(trained)
    example.serve("read", "digits:1")
    with platform.database.read() as session:
        row = get_job(session, example.tenant_id, trained)
        pipeline, artifact = row.pipeline_id, row.outputs["checkpoint"]
    return {
        Readable.JOB: f"/console/jobs/{trained}",
        Readable.PIPELINE: f"/console/pipelines/{pipeline}",
        Readable.SWEEP: f"/console/sweeps/{example.sweep()}",
        Readable.ARTIFACT: f"/console/artifacts/{artifact}",
        Readable.ENDPOINT: "/console/endpoints/read",
    }


@pytest.mark.parametrize("kind", Readable, ids=lambda kind: kind.name)
def test_the_snippets_of_a_page_read_what_it_shows(
    kind: Readable,
    client: httpx.Client,
    platform: Platform,
    pages: dict[Readable, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    text = client.get(pages[kind]).text
    check_page(text)
    shell, python, curl = [html.unescape(found) for found in PRE.findall(text.split("From a program")[1])]
    token = first_token(platform)
    address = str(client.base_url).rstrip("/")
    monkeypatch.setenv("RDUKIT_TOKEN", token)
    monkeypatch.setenv("RDUKIT_GATEWAY_URL", address)
    monkeypatch.chdir(tmp_path)

    names: dict[str, Any] = {}
    exec(compile(python, "snippet", "exec"), names)
    names["platform"].close()
    assert capsys.readouterr().out or kind is Readable.ARTIFACT

    words = shlex.split(curl)
    assert words[:2] == ["curl", "-s"]
    name, _, value = words[3].partition(": ")
    assert httpx.get(words[4], headers={name: value.replace("$RDUKIT_TOKEN", token)}).status_code == 200

    if kind is Readable.ARTIFACT:
        shutil.rmtree(shell.split()[-1])
    ran = CliRunner().invoke(cli, shlex.split(shell)[1:])
    assert ran.exit_code == 0, ran.output


def test_every_empty_list_prints_a_command_that_exists(client: httpx.Client, platform: Platform) -> None:
    with browser(platform) as stranger:
        log_in(stranger, other_token(platform, ["read", "write"]))
        paths = [entry.path for group in GROUPS for entry in group.pages if not entry.scopes]
        told = {path: PRE.findall(stranger.get(path).text) for path in paths}
    # The login is in the audit log, and members need an issuer.
    has_no_empty_list = {"/console/catalog", "/console/tenants", "/console/members", "/console/audit"}
    assert {path for path, commands in told.items() if not commands} == has_no_empty_list
    for command in [html.unescape(each) for commands in told.values() for each in commands]:
        for line in command.replace("\\\n", " ").splitlines():
            check_command(line.partition(" > ")[0])
