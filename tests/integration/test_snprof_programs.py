"""``snprof`` and the programs that it runs: their exit status, and what it says if no session ran."""

import json
from pathlib import Path

from click.testing import CliRunner

from rdukit_runtime.profile.snprof import snprof
from support import shows

pytestmark = shows("snprof", "profile")


def test_json_is_valid_when_no_session_ran_and_the_exit_status_tells(tmp_path: Path) -> None:
    result = CliRunner().invoke(snprof, ["-c", "true", "--json", "-o", str(tmp_path)])
    assert result.exit_code == 3
    assert json.loads(result.stdout)["runs"] == 0
    assert json.loads((tmp_path / "summary.json").read_text())["exit_status"] == 0
    assert (tmp_path / "summary.csv").read_text().startswith("Breakdown,Time in nsec,Time in sec,Percentage\nTOTAL,0,")


def test_the_exit_status_is_the_programs(tmp_path: Path) -> None:
    assert CliRunner().invoke(snprof, ["-c", "sh -c 'exit 5'", "-o", str(tmp_path)]).exit_code == 5
