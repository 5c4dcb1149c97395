"""The ``rdukit`` command. Parts add sub-commands through the entry-point group ``rdukit.commands``."""

import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final, NoReturn

import click

from rdukit import __version__
from rdukit.cli.commands import Choice, ExtensibleGroup, end_help_as, with_plain_range
from rdukit.errors import InvalidArgument, RdukitError, find_system_error
from rdukit.files.home import mend_home
from rdukit.system.process import LEVELS, configure_logging

logger = logging.getLogger(__name__)

GROUP = "rdukit.commands"


class CommandGroup(ExtensibleGroup):
    """Loads a sub-command only when it is used, so that ``rdukit --help`` imports no part."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each command's name and summary by role, without importing the parts."""
        installed = self.list_commands(ctx)
        for role, commands in ROLES.items():
            with formatter.section(role):
                formatter.write_dl([(name, SUMMARIES[name]) for name in commands if name in installed])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command; its help and that of its sub-commands end with their page of the manual."""
        found = super().get_command(ctx, cmd_name)
        if found is not None:
            end_help_as(found, manual_line(cmd_name))
        return found


#: One line per sub-command for ``rdukit --help``; a test compares it with the commands' own help.
SUMMARIES = {
    "artifact": "List, show, fetch, add, pin and delete artifacts of the platform.",
    "audit": "List and verify the audit log.",
    "backup": "Back up a stopped or running platform: database, artifacts, settings, faults of the node.",
    "bench": "Compare this machine's speed and memory with those of PyTorch and other common tools.",
    "box": "Describe, run and call ModelBoxes.",
    "bundle": "Check bundles of experts, which rdukit serve --bundle serves.",
    "cache": "Show, trim and clear the compiler's cache.",
    "catalog": "Search and compare boxes, models, experts, checkpoints, PEFs and data sets.",
    "checkpoint": "Show, compare and convert checkpoints, safetensors files and Hugging Face folders.",
    "collective": "Plan collectives between RDUs, nodes and racks, and measure those of this machine.",
    "completion": "Print the script that completes commands and options in a shell.",
    "context": "Name platforms, and choose the one that commands use.",
    "debug": "Run the PEF FILE section by section, and name the first wrong section, operator and tensor.",
    "demo": "Run preprocess, compile, train and infer on real digits, then stop.",
    "docs": "Open a page of the manual, or the entry of an error, without a network.",
    "doctor": "Check this installation against the manual, and print what to do.",
    "endpoint": "Run experts behind the gateway; update, roll back, call and delete them.",
    "expert": "Promote trained checkpoints to experts; list, compare and deprecate them.",
    "finetune": "Train the model of a Hugging Face folder on texts, completions, chats, preferences, or labelled data.",
    "job": "Submit, list, show, watch, compare, clone, pause, resume and cancel jobs.",
    "login": "Log in through the console, in a browser on any machine.",
    "logout": "End the token of rdukit login, and delete it here.",
    "node": "Run and inspect emulated nodes.",
    "org": "Group tenants into organisations, whose administrators manage their members.",
    "pef": "Explain PEF files.",
    "pipeline": "Submit, list, show, cancel and schedule pipelines of jobs.",
    "profile": "Run COMMAND, and show its time on the host and in sections, from Python lines to kernels.",
    "restore": "Restore a backup into an empty $RDUKIT_HOME and its database.",
    "router": "Train and serve routers, which choose an expert for each prompt.",
    "serve": "Serve PEF over the Open Inference Protocol (REST, gRPC), and text models over OpenAI's routes.",
    "simulate": "Simulate the scheduler with other jobs, or project a training onto more machines.",
    "status": "Show the node daemon, platform, jobs and boxes that run here, and the home folder.",
    "sweep": "Run a training with several values of its parameters, and show the best ones.",
    "tenant": "Create tenants and API tokens.",
    "token": "List, create, rotate and revoke the API tokens of your tenant.",
    "tune": "Search compile options that speed up PROGRAM's steps, and write them to a file.",
    "up": "Start the platform on this machine and keep it running until Ctrl-C.",
    "user": "List, invite and remove the members of your tenant, and choose their roles.",
    "webhook": "Manage webhooks, which notify URLs about job events by signed messages.",
    "whoami": "Show your identity on the platform: user, tenant, role and token expiry.",
    "zoo": "List models, print their programs' paths, and plan published sizes.",
}

#: Commands by the reader's goal, each with its page of the manual.
ROLES: Final[Mapping[str, Mapping[str, str]]] = {
    "Start": {
        "demo": "start", "up": "start", "status": "start", "doctor": "troubleshooting", "docs": "README",
        "completion": "start",
    },
    "Port and train models": {
        "profile": "profile", "tune": "tune", "debug": "debug", "finetune": "finetune", "pef": "pef-profile",
        "cache": "native-kernels", "checkpoint": "checkpoints", "collective": "collectives",
        "simulate": "simulate-queue", "bench": "bench",
    },
    "Use models and data": {
        "catalog": "catalog", "zoo": "zoo", "job": "jobs", "pipeline": "pipelines", "sweep": "sweeps",
        "expert": "experts", "artifact": "artifacts",
    },
    "Serve and call models": {
        "serve": "inference", "bundle": "bundles", "router": "bundles", "endpoint": "endpoints", "webhook": "webhooks",
        "box": "modelbox",
    },
    "Log in": {"login": "identity", "logout": "identity", "whoami": "identity", "context": "identity"},
    "Run a node or a platform": {
        "node": "node", "tenant": "tokens", "user": "identity", "org": "identity", "token": "tokens",
        "audit": "audit-log", "backup": "backup", "restore": "backup",
    },
}  # fmt: skip


#: Pages of the administration tools that have one of their own; the others are in ``tools``.
TOOLS: Final[Mapping[str, str]] = {
    "snfadm": "snfadm", "sntilestat": "node-watch", "snddrstat": "node-watch", "snpciestat": "node-watch",
    "sambatune": "sambatune", "read_perf_counters": "sambatune",
}  # fmt: skip


def manual_line(command: str) -> str:
    """Return the last line of a command's help, which names its page; other names are tools."""
    page = next((pages[command] for pages in (*ROLES.values(), TOOLS) if command in pages), "tools")
    return f"Manual: rdukit docs {page}"


@click.group(cls=CommandGroup, extended_by=GROUP, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rdukit")
@click.option(
    "--log-level", type=Choice(LEVELS, case_sensitive=False), default=None, help="Level of the log on stderr."
)
def cli(log_level: str | None) -> None:
    """Use an emulated DataScale system: SDK, compiler, runtime, ModelBoxes and a job platform.

    rdukit is independent of SambaNova Systems; the accelerator is emulated.

    Example: rdukit demo

    Example: rdukit demo --port 8080 --json
    """
    configure_logging(log_level)
    mend_home()


@click.command()
@click.argument("shell", type=Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> None:
    """Print the script that completes commands and options in a shell.

    Load it in the shell's start-up file: eval "$(rdukit completion bash)" in ~/.bashrc or, with zsh, in ~/.zshrc; for
    fish write it to ~/.config/fish/completions/rdukit.fish.

    Example: rdukit completion bash

    Example: rdukit completion zsh
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    script = found(cli, {}, "rdukit", "_RDUKIT_COMPLETE")
    click.echo(script.source_template % script.source_vars())


def main() -> None:
    """Run the ``rdukit`` command; errors become one line on stderr and their own exit status."""
    run_command(cli)


def run_command(command: click.Command) -> None:
    """Run a click command as a process: ``RdukitError`` to its exit status, Ctrl-C to 130.

    With ``--json`` among the arguments the error is printed as JSON on stdout too.
    """
    if command is not cli:
        end_help_as(command, manual_line(command.name or ""))
    with exit_on_error():
        status = _run_click(command)
    sys.exit(status if isinstance(status, int) else 0)


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Turn an ``RdukitError`` of a program's main into one line on stderr and its own exit status.

    An output that cannot be written, such as to a full disk, is an error too, also when the buffer is flushed at the
    end.
    """
    try:
        try:
            yield
        except SystemExit as stop:
            if stop.code in (None, 0):
                _flush_output()
            raise
        _flush_output()
    except RdukitError as error:
        _exit_with(error)
    except OSError as error:
        known = find_system_error(error)
        if known is None:
            _drop_output()
            raise
        logger.debug("refused by the system", exc_info=error)
        _exit_with(known)


def _exit_with(error: RdukitError) -> NoReturn:
    if "--json" in sys.argv:
        _echo_body(error)
    _drop_output()
    click.echo(f"error [{error.code}]: {error.message}", err=True)
    if sys.stderr is not None and sys.stderr.isatty():  # a hint for people; programs read only one line
        click.echo(f"More: rdukit docs {error.code}", err=True)
    sys.exit(error.exit_status)


def _echo_body(error: RdukitError) -> None:
    """Print the error as JSON on stdout, if it can be written; stderr and the exit status report it in any case."""
    with suppress(OSError):
        click.echo(json.dumps(error.body(), sort_keys=True))


def _flush_output() -> None:
    """Flush stdout, ignoring a closed pipe. Raises: OSError: it cannot be written."""
    if sys.stdout is not None and not sys.stdout.closed:
        with suppress(BrokenPipeError):
            sys.stdout.flush()


def _drop_output() -> None:
    """Drop output that cannot be written: at its end, the interpreter would try again and print a traceback."""
    try:
        _flush_output()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _run_click(command: click.Command) -> object:
    try:
        return command.main(standalone_mode=False)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as refused:
        error = with_plain_range(refused)
        if "--json" in sys.argv:
            _echo_body(InvalidArgument(error.format_message()))
        _drop_output()
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
