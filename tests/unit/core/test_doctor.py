"""What ``rdukit doctor`` concludes from what it finds on the host."""

from pathlib import Path

import pytest

from rdukit.cli.status import PartStatus
from rdukit.doctor.cli import Finding, FindingLevel, exit_status, in_order, worst_of
from rdukit.doctor.host import (
    above_findings,
    compiler_finding,
    disk_finding,
    home_finding,
    part_finding,
    secret_findings,
)
from rdukit.files.home import Folder
from support import shows

pytestmark = shows("doctor", "security")

OURS, THEIRS = 1000, 1001
HOME = Path("/srv/home")


def folder(owner: int, mode: int) -> Folder:
    return Folder(owner, mode, frozenset())


@pytest.mark.parametrize(
    ("found", "level", "todo"),
    [
        (None, FindingLevel.GOOD, ""),
        (folder(OURS, 0o700), FindingLevel.GOOD, ""),
        (folder(OURS, 0o755), FindingLevel.BAD, "chmod 700 /srv/home"),
        (folder(0, 0o700), FindingLevel.GOOD, ""),
        (folder(0, 0o777), FindingLevel.BAD, "chmod 700 /srv/home"),
        (folder(THEIRS, 0o700), FindingLevel.BAD, "set RDUKIT_HOME to a folder of your own"),
    ],
)
def test_a_home_folder_is_private_or_there_is_something_to_do(
    found: Folder | None, level: FindingLevel, todo: str
) -> None:
    finding = home_finding(HOME, found, OURS)
    assert (finding.level, finding.todo) == (level, todo)


@pytest.mark.parametrize(
    ("above", "level"),
    [
        (folder(0, 0o755), FindingLevel.GOOD),
        (folder(0, 0o1777), FindingLevel.GOOD),
        (folder(OURS, 0o755), FindingLevel.GOOD),
        (folder(0, 0o777), FindingLevel.BAD),
        (folder(OURS, 0o775), FindingLevel.BAD),
        (folder(THEIRS, 0o755), FindingLevel.BAD),
    ],
)
def test_who_may_rename_the_home_folder_may_replace_it(above: Folder, level: FindingLevel) -> None:
    assert worst_of(above_findings([(Path("/srv"), above), (Path("/"), folder(0, 0o755))], OURS)) is level


def test_a_secret_that_others_may_read_is_named() -> None:
    (finding,) = secret_findings([(HOME / "token", 0o600), (HOME / "console.key", 0o640), (HOME / "db.sqlite", None)])
    assert (finding.level, finding.todo) == (FindingLevel.BAD, "chmod 600 /srv/home/console.key")


def test_little_room_is_a_warning_and_none_is_bad() -> None:
    assert disk_finding(HOME, 1 << 20).level is FindingLevel.BAD
    assert disk_finding(HOME, 17 << 20).level is FindingLevel.WARN
    assert disk_finding(HOME, 1 << 40).level is FindingLevel.GOOD


@pytest.mark.parametrize(
    ("state", "level"),
    [
        ("running", FindingLevel.GOOD),
        ("stopped", FindingLevel.GOOD),
        ("starting", FindingLevel.WARN),
        ("degraded", FindingLevel.BAD),
        ("unknown", FindingLevel.UNKNOWN),
    ],
)
def test_a_part_that_does_not_serve_is_found_with_its_log(state: str, level: FindingLevel) -> None:
    found = part_finding(PartStatus("platform", state, "as it is"), HOME)
    assert (found.check, found.level, found.what) == ("platform.state", level, "as it is")
    assert ("/srv/home/logs" in found.todo) == (level is not FindingLevel.GOOD)


def test_the_worst_comes_first_and_decides_the_exit_status() -> None:
    levels = [FindingLevel.GOOD, FindingLevel.BAD, FindingLevel.WARN, FindingLevel.UNKNOWN]
    findings = [Finding(str(level), level, "") for level in levels]
    assert [each.level for each in in_order(findings)] == [
        FindingLevel.BAD,
        FindingLevel.WARN,
        FindingLevel.UNKNOWN,
        FindingLevel.GOOD,
    ]
    assert worst_of([]) is FindingLevel.GOOD
    assert [exit_status(level, is_strict=False) for level in levels] == [0, 1, 0, 0]
    assert [exit_status(level, is_strict=True) for level in levels] == [0, 1, 1, 1]


def test_a_missing_compiler_is_a_warning_that_says_what_to_install() -> None:
    assert compiler_finding("/usr/bin/g++").level is FindingLevel.GOOD
    missing = compiler_finding(None)
    assert missing.level is FindingLevel.WARN
    assert "portable" in missing.what and "install g++" in missing.todo
