"""The script of a box's job in Slurm, as a shell runs it."""

import subprocess
from pathlib import Path

from rdukit_platform.backends.slurm_jobs import JobFiles, make_script
from support import shows

pytestmark = shows("slurm")


def test_a_script_ends_as_its_program_does_and_waits_for_one_that_takes_its_time(tmp_path: Path) -> None:
    files = JobFiles(tmp_path / "a 'folder'")
    files.state.mkdir()

    def run(program: str) -> int:
        script = make_script(["sh", "-c", program], files, None)
        return subprocess.run(["sh"], input=script, text=True, check=False).returncode

    assert run("exit 5") == 5
    assert run("kill -9 $$") == 137
    # SIGTERM reaches the script too, while its program has something to finish.
    assert run("trap '' TERM; kill -TERM $PPID; read line < /dev/null; echo finished; exit 6") == 6
    assert files.log.read_text() == "finished\n" and files.pid.read_text().strip().isdecimal()
    files.done.touch()
    assert run("exit 5") == 0, "the platform ended it in order"
