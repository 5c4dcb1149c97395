"""Words to the service manager, and its units."""

import os
from pathlib import Path

import pytest

from rdukit.errors import InvalidArgument
from rdukit_node.daemon.run import watchdog_interval_s
from rdukit_node.install.plan import UnitPlaces, exporter_unit, snd_unit
from support import shows

pytestmark = shows("node")


def test_the_watchdog_is_for_the_process_that_the_manager_means() -> None:
    environ = {"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "30000000"}
    assert watchdog_interval_s(environ) == 15.0
    assert watchdog_interval_s({**environ, "WATCHDOG_PID": str(os.getpid())}) == 15.0
    assert watchdog_interval_s({**environ, "WATCHDOG_PID": "1"}) is None
    assert watchdog_interval_s({**environ, "WATCHDOG_USEC": "often"}) is None
    assert watchdog_interval_s({}) is None


def test_the_system_s_unit_has_its_run_folder_made_and_a_prefix_has_its_own() -> None:
    python = Path("/usr/bin/python3")
    system = snd_unit(UnitPlaces(Path("/"), python))
    assert "ExecStart=/opt/sambaflow/bin/snd\n" in system
    assert "RuntimeDirectory=sambaflow\n" in system
    assert "PrivateTmp=yes\n" in system
    prefixed = snd_unit(UnitPlaces(Path("/srv/n%0"), python))
    assert "ExecStart=/srv/n%%0/opt/sambaflow/bin/snd\n" in prefixed
    assert "RuntimeDirectory" not in prefixed
    assert "PrivateTmp" not in snd_unit(UnitPlaces(Path("/tmp/x"), python))
    assert "DynamicUser=yes\n" in exporter_unit(UnitPlaces(Path("/"), python))


@pytest.mark.parametrize("root", ["relative", "/with space", "/quo'te", "/dollar$", "/new\nline"])
def test_a_path_that_a_unit_cannot_hold_is_refused(root: str) -> None:
    with pytest.raises(InvalidArgument, match="absolute path without"):
        snd_unit(UnitPlaces(Path(root), Path("/usr/bin/python3")))
