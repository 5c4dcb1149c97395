"""What a fence is, and who puts it up."""

import json
import sys
from pathlib import Path

import pytest

from rdukit.errors import InvalidArgument
from rdukit.fence.spec import NEEDED, FenceLimits, FencePart, FenceSpec, Way, choose_way, outermost, to_json
from rdukit.fence.start import program_paths
from rdukit.fence.watch import over_disk
from support import shows

pytestmark = shows("job-boxes", "security", "fence", "box-fence")


def test_root_takes_the_machines_namespaces_and_anybody_else_a_user_namespace() -> None:
    assert choose_way(True) is Way.ROOT
    assert choose_way(False) is Way.USER


def test_only_landlock_may_be_missing() -> None:
    assert set(FencePart) - NEEDED == {FencePart.LANDLOCK}


def test_a_folder_within_another_is_not_named_twice() -> None:
    assert outermost(["/a/b", "/a", "/ab", "/a", "/a/b/c"]) == ["/a", "/ab"]


def test_what_the_launcher_reads_has_everything() -> None:
    spec = FenceSpec(["/bin/true"], {"A": "b"}, "/tmp", ["/r"], ["/w"], uid=7, limits=FenceLimits(processes=3))
    read = json.loads(to_json(spec, Way.ROOT, b"\x01\xff"))
    assert read["command"] == ["/bin/true"] and read["way"] == "root" and read["system_calls"] == "01ff"
    assert read["limits"]["processes"] == 3 and read["uid"] == 7 and "/usr" in read["system"]


def test_a_python_of_ours_reads_its_packages_and_nothing_around_them(tmp_path: Path) -> None:
    script = tmp_path / "a.py"
    script.write_text("")
    paths = program_paths([sys.executable, str(script), "--flag", "/not/there"], str(tmp_path / "nowhere"))
    assert sys.base_prefix in paths and str(script) in paths and "/not/there" not in paths
    own = Path(__file__).parents[3]
    assert all(Path(path) not in own.parents and Path(path) != own for path in paths)


def test_what_counts_beside_its_files_meets_the_disks_limit_also_where_there_is_no_file(tmp_path: Path) -> None:
    assert over_disk(100, 10, [str(tmp_path)], [], used=100) == over_disk(None, 10, [], [], used=101) == ""
    assert over_disk(100, 10, [str(tmp_path)], [], used=101) == "more than 100 bytes in its folders"


def test_a_program_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="no-such-program"):
        program_paths(["no-such-program"])
