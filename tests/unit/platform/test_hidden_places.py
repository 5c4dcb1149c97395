"""Errors of jobs say where something is as the job sees it, not as the host does."""

from pathlib import Path

from rdukit_platform.worker.attempts.inputs import hide_places
from support import shows

pytestmark = shows("job", "jobs", "security")


def test_an_error_has_no_places_of_the_host() -> None:
    home = Path("/srv/rdukit")
    folder = home / "work" / "job-1"
    error = {
        "code": "pef-not-found", "message": f"there is nothing at {folder}/in/pef; it lies in {folder}",
        "detail": {"path": f"{folder}/in/pef", "files": [f"{home}/db.sqlite", 3], "n": 1.5, "none": None},
    }  # fmt: skip
    assert hide_places(error, folder, home) == {
        "code": "pef-not-found", "message": "there is nothing at in/pef; it lies in .",
        "detail": {"path": "in/pef", "files": ["<home>/db.sqlite", 3], "n": 1.5, "none": None},
    }  # fmt: skip
