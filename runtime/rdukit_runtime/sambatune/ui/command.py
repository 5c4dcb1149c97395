"""``sambatune_ui``: serves the pages on loopback until Ctrl-C. Options are the vendor's."""

import secrets
import socket
from pathlib import Path
from typing import Final

import click

from rdukit import __version__
from rdukit.cli import run_command
from rdukit.errors import InvalidArgument

#: The vendor's port. Source: sambatune reference 1.4.
PORT: Final = 8576
_LOOPBACK: Final = "127.0.0.1"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sambatune_ui")
@click.option(
    "--directory", type=click.Path(path_type=Path), default=Path("artifact_root"), show_default=True,
    help="Artifact root of the sambatune runs.",
)  # fmt: skip
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=PORT,
    show_default=True,
    help="Port to listen on; 0: any free port.",
)
def sambatune_ui(directory: Path, port: int) -> None:
    """Serve the reports of sambatune runs to browsers on this machine, until Ctrl-C.

    Prints the address, the user, and a password that is new at every start.

    Example: sambatune_ui --directory artifact_root --port 8576
    """
    import uvicorn

    from rdukit_runtime.sambatune.ui.app import USER, make_app
    from rdukit_runtime.sambatune.ui.runs import list_runs

    list_runs(directory)
    password = secrets.token_urlsafe(12)
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((_LOOPBACK, port))
        listener.listen()
    except OSError as cause:
        raise InvalidArgument(f"port {port} cannot be used: {cause.strerror}; choose another with --port") from cause
    click.echo(f"URL: http://{_LOOPBACK}:{listener.getsockname()[1]}/")
    click.echo(f"user: {USER}")
    click.echo(f"password: {password}")
    server = uvicorn.Server(uvicorn.Config(make_app(directory, password), log_level="warning", lifespan="off"))
    server.run(sockets=[listener])


def main() -> None:
    """Entry point."""
    run_command(sambatune_ui)


if __name__ == "__main__":
    main()
