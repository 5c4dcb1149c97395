"""A PostgreSQL server of our own, on loopback: the machine's programs, an empty cluster, no password."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from support import wait_until


def find_programs() -> Path | None:
    """Return the folder of ``initdb`` and ``postgres``, if they are installed."""
    found = shutil.which("initdb")
    if found and shutil.which("postgres"):
        return Path(os.path.realpath(found)).parent
    return max(Path("/usr/lib/postgresql").glob("*/bin"), default=None, key=lambda path: int(path.parent.name))


@contextmanager
def postgres_server(place: Path = Path("/tmp")) -> Iterator[str]:
    """Yield the URL of a server without its database: ``postgresql+psycopg://rdukit@127.0.0.1:PORT``.

    ``place``: where the folder of its data is made.

    The test skips where there are no programs. A server refuses to run as root, and so runs as nobody there.
    """
    programs = find_programs()
    if programs is None:
        if os.environ.get("RDUKIT_REQUIRE_POSTGRES"):
            raise AssertionError("there is no PostgreSQL on this machine")
        pytest.skip("there is no PostgreSQL on this machine: apt-get install postgresql")
    user = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="rdk-pg-", dir=place) as folder:
        data = Path(folder) / "data"
        data.mkdir()
        if user is not None:
            os.chown(folder, user, -1)
            os.chown(data, user, -1)
        options = ["-U", "rdukit", "--auth=trust", "--no-sync", "-E", "UTF8", "--no-locale"]
        make = [str(programs / "initdb"), "-D", str(data), *options]
        subprocess.run(make, check=True, capture_output=True, user=user, cwd="/")
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        options = ["listen_addresses=127.0.0.1", f"unix_socket_directories={folder}", "fsync=off", f"port={port}"]
        command = [
            str(programs / "postgres"),
            "-D",
            str(data),
            *(word for option in options for word in ("-c", option)),
        ]
        with (Path(folder) / "log").open("wb") as log:
            server = subprocess.Popen(command, stdout=log, stderr=log, user=user, cwd="/")
        try:
            wait_until(lambda: _answers(port), 60)
            yield f"postgresql+psycopg://rdukit@127.0.0.1:{port}"
        finally:
            server.send_signal(2)  # fast: connections are closed
            server.wait(60)


def new_database(server: str, name: str, template: str = "template1") -> str:
    """Make an empty database, or a copy of ``template``; one of this name goes. Returns its URL."""
    with psycopg.connect(f"{server.replace('+psycopg', '')}/postgres", autocommit=True) as connection:
        connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'.encode())
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"'.encode())
    return f"{server}/{name}"


def _answers(port: int) -> bool:
    try:
        psycopg.connect(f"postgresql://rdukit@127.0.0.1:{port}/postgres", connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True
