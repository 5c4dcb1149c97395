"""``rdukit doctor --security`` finds the tokens that a real platform has."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rdukit_platform.tenants.service import create_tenant
from rdukit_platform.tenants.tokens import create_token
from support import shows
from support.platform.gateway import opened_platform
from support.platform.processes import short_folder

pytestmark = shows("doctor", "security")


def test_a_token_without_an_end_is_found_in_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    with short_folder() as folder:
        monkeypatch.setenv("RDUKIT_HOME", str(folder))
        with opened_platform() as platform:
            now = platform.clock.now()
            with platform.database.write() as session:
                lab = create_tenant(session, "lab", now).id
                endless, text = create_token(session, lab, "ci", ["read"], now)
                ends, _ = create_token(session, lab, "ci", ["read"], now, now + 60)
        command = [Path(sys.executable).with_name("rdukit"), "doctor", "--security", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        found = {each["check"]: each for each in json.loads(done.stdout)["findings"]}
        assert (found["tokens.endless"]["level"], endless.id in found["tokens.endless"]["what"]) == ("warn", True)
        assert ends.id not in done.stdout
        assert text not in done.stdout
        assert (folder / "token").read_text().strip() not in done.stdout
        assert (found["boxes"]["level"], done.returncode) in {("good", 0), ("bad", 1)}
