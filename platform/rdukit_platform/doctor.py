"""Checks of the platform for ``rdukit doctor``, which only read.

A bucket of artifacts is tried with an object that is removed again.
"""

import errno
import ipaddress
import os
import socket
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from rdukit.doctor.cli import Finding, FindingLevel, Topic
from rdukit.errors import RdukitError
from rdukit.fence.probe import what_holds
from rdukit.interfaces import SystemClock
from rdukit.settings import TLS_KEY, resolve
from rdukit_platform.artifacts.stores.opening import open_store
from rdukit_platform.artifacts.stores.s3 import S3Store
from rdukit_platform.backends.slurm_commands import SlurmCommands, find_place
from rdukit_platform.db.engine import Database
from rdukit_platform.db.migrate import HEAD, known_revisions, read_revision
from rdukit_platform.db.models import TenantRow, TokenRow
from rdukit_platform.jobs.broker import Notifier
from rdukit_platform.services import UNFENCED, live_services
from rdukit_platform.settings import (
    BOX_BACKEND,
    BROKER_PASSWORD_FILE,
    BROKER_URL,
    FENCE,
    GATEWAY_HOST,
    GATEWAY_PORT,
    GATEWAY_PROXIES,
    GATEWAY_TLS_CERTIFICATE,
    GATEWAY_TLS_KEY,
    INSTALL_TENANTS,
    PROCESSES,
    SLURM,
    Home,
    current_home,
)
from rdukit_platform.tenants.scopes import ADMIN, is_over
from rdukit_platform.tenants.tokens import GLASS
from rdukit_platform.up.run import gateway_url, read_health


def check_platform() -> Iterator[Finding]:
    """Yield the settings of gateway, broker, database and boxes, and the tokens that are valid."""
    home = current_home()
    yield gateway_finding(resolve(GATEWAY_HOST), bool(resolve(GATEWAY_TLS_CERTIFICATE)), resolve(GATEWAY_PROXIES))
    yield from key_findings(_modes([resolve(GATEWAY_TLS_KEY), resolve(TLS_KEY), resolve(BROKER_PASSWORD_FILE)]))
    yield from _of_broker(home)
    yield from _of_port(home, resolve(GATEWAY_HOST), resolve(GATEWAY_PORT))
    yield database_finding(home.database_url())
    if resolve(BOX_BACKEND) == SLURM:
        yield slurm_finding()
    yield from compose_findings(os.environ)
    yield from _of_store(home)
    yield from _of_database(home)


def _modes(files: Iterable[str]) -> list[tuple[str, int]]:
    return [(file, stat.S_IMODE(Path(file).stat().st_mode)) for file in files if file and Path(file).exists()]


def _of_broker(home: Home) -> Iterator[Finding]:
    try:
        url = home.broker_url()
    except RdukitError as error:
        yield Finding("broker.password", FindingLevel.UNKNOWN, error.message)
        return
    yield broker_finding(url)
    if not resolve(BROKER_URL):
        return  # rdukit up starts it, and platform.state tells of it
    try:
        with closing(Notifier(url)) as broker:
            yield broker_state_finding(broker.is_up())
    except ValueError as error:
        what = f"{BROKER_URL.name} is not the URL of a broker: {error}"
        yield Finding("broker.state", FindingLevel.BAD, what, "such as redis://mq:6379/0", Topic.MACHINE)


def broker_state_finding(is_up: bool) -> Finding:
    """Judge whether the broker that the settings name answers."""
    if is_up:
        return Finding("broker.state", FindingLevel.GOOD, "the broker answers", topic=Topic.MACHINE)
    todo = f"start it, or name another: {BROKER_URL.name}"
    return Finding("broker.state", FindingLevel.BAD, "the broker does not answer", todo, Topic.MACHINE)


def _of_port(home: Home, host: str, port: int) -> Iterator[Finding]:
    # A gateway that something else than rdukit up has started has its port, too.
    if home.find_up() is None and is_taken(host, port) and "parts" not in read_health(gateway_url(host, port)):
        what, todo = (
            f"another program listens on {host}:{port}",
            f"choose another: rdukit up --port, {GATEWAY_PORT.name}",
        )
        yield Finding("gateway.port", FindingLevel.BAD, what, todo, Topic.MACHINE)


def is_taken(host: str, port: int) -> bool:
    """Return whether a program listens at a port of this machine; false for port 0."""
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False


def _of_database(home: Home) -> Iterator[Finding]:
    path = home.database_file()
    if path is not None and not path.exists():
        yield Finding("tokens", FindingLevel.GOOD, f"there is no database {path} yet")
        return
    try:
        with closing(Database.of_home(home)) as database, database.read() as session:
            revision = read_revision(session.connection())
            if revision != HEAD:
                yield schema_finding(revision)
                return
            rows = session.execute(select(TokenRow, TenantRow.name).join(TenantRow, TenantRow.id == TokenRow.tenant_id))
            now = SystemClock().now()
            tokens = [
                TokenFacts(row.id, name, frozenset(row.scopes), row.created_at, row.expires_at, row.last_used_at,
                           row.made_by)
                for row, name in rows
                if not is_over(now, row.revoked_at, row.expires_at, row.blocked_at)
            ]  # fmt: skip
            tenants = len(session.scalars(select(TenantRow.id)).all())
            walls = {row.id: row.walls for row in live_services(session, now) if row.kind == "worker"}
    except SQLAlchemyError as error:
        why = next(iter(str(getattr(error, "orig", None) or error).splitlines()), "")
        what, todo = f"the database does not answer: {why}", "start it, or name another: database.url"
        yield Finding("database.state", FindingLevel.BAD, what, todo, Topic.MACHINE)
        yield Finding("tokens", FindingLevel.UNKNOWN, "the database, which has them, does not answer", todo)
        return
    yield from token_findings(tokens, now)
    if walls:  # they know, wherever this runs
        yield from workers_findings(walls, tenants, resolve(INSTALL_TENANTS))
    else:
        yield boxes_finding(resolve(BOX_BACKEND), _is_fenced(), tenants, resolve(INSTALL_TENANTS))


def _of_store(home: Home) -> Iterator[Finding]:
    store = open_store(home)
    if not isinstance(store, S3Store):
        return
    try:
        yield bucket_finding(store.where, store.probe())
    except RdukitError as error:
        yield Finding(BUCKET, FindingLevel.BAD, error.message, "see docs/artifact-store.md, In a bucket of S3")


def bucket_finding(where: str, offset_s: float) -> Finding:
    """Judge a usable bucket by how far the server's clock is ahead of this machine's."""
    if abs(offset_s) > MAX_OFFSET_S:
        what = (
            f"this machine's clock and that of {where} are {abs(offset_s):.0f} s apart; S3 refuses from 15 minutes on"
        )
        return Finding(BUCKET, FindingLevel.WARN, what, "set the clocks by NTP")
    return Finding(BUCKET, FindingLevel.GOOD, f"{where} can be written, listed, read and swept")


def _is_fenced() -> bool:
    return resolve(FENCE) != "off" and what_holds().holds


BUCKET: Final = "artifacts.store"
#: Harmless difference of two clocks in seconds; answers have whole seconds.
MAX_OFFSET_S: Final = 5.0
DAY_S: Final = 86400.0
#: A token that was unused for this long is reported.
IDLE_DAYS: Final = 90
#: Passwords from examples.
KNOWN_PASSWORDS: Final = frozenset({"rdukit", "postgres", "password", "changeme", "secret", "guest"})


@dataclass(frozen=True, slots=True)
class TokenFacts:
    """Facts of a valid token."""

    id: str
    tenant: str
    scopes: frozenset[str]
    created_at: float
    expires_at: float | None
    last_used_at: float | None
    made_by: str | None


def token_findings(tokens: Sequence[TokenFacts], now: float) -> Iterator[Finding]:
    """Find tokens without an end, unused ones, and those with more rights than most need."""
    endless = [token for token in tokens if token.expires_at is None]
    strong = [token for token in endless if ADMIN in token.scopes]
    if len(strong) > 1:
        what = f"{len(strong)} administrator's tokens never expire: {_names(strong)}"
        yield Finding(
            "tokens.admin",
            FindingLevel.WARN,
            what,
            "keep the one in the home folder, and revoke others: rdukit token revoke …",
        )
    weak = [token for token in endless if token not in strong]
    if weak:
        todo = "replace them by expiring ones (rdukit token create --expires-in 90d), or set token.max_days"
        yield Finding("tokens.endless", FindingLevel.WARN, f"{len(weak)} tokens never end: {_names(weak)}", todo)
    idle = [t for t in tokens if now - (t.last_used_at or t.created_at) > IDLE_DAYS * DAY_S]
    if idle:
        what = f"{len(idle)} tokens were not used for {IDLE_DAYS} days: {_names(idle)}"
        yield Finding("tokens.idle", FindingLevel.WARN, what, "rdukit token revoke …")
    glass = [token for token in tokens if token.made_by == GLASS]
    if glass:
        what = f"a break-glass token is valid: {_names(glass)}"
        yield Finding("tokens.break-glass", FindingLevel.WARN, what, "revoke it when it is no longer needed")
    if not (len(strong) > 1 or weak or idle or glass):
        yield Finding(
            "tokens", FindingLevel.GOOD, f"{len(tokens)} tokens are valid; all except the first administrator's expire"
        )


def schema_finding(revision: str | None) -> Finding:
    """Describe a database with another schema than this code's: its tokens cannot be read."""
    if revision is None:
        return Finding(
            "tokens", FindingLevel.GOOD, "the database is empty; the platform creates its tables when it starts"
        )
    what = f"the database has the schema {revision}, this rdukit has {HEAD}"
    todo = (
        "start the platform, which upgrades the database" if revision in known_revisions()
        else "use the rdukit that migrated it, or a newer one"
    )  # fmt: skip
    return Finding("tokens", FindingLevel.UNKNOWN, what, todo)


def broker_finding(url: str) -> Finding:
    """Check that the broker asks for a password: its messages start jobs."""
    parts = urlsplit(url)
    if parts.scheme in {"redis+socket", "unix"}:
        return Finding("broker.password", FindingLevel.GOOD, "the broker is a socket in the home folder")
    where = f"the broker at {parts.hostname}:{parts.port or 6379}"
    if not parts.password:
        todo = "set a password (requirepass), and name it in broker.url or broker.password_file"
        return Finding("broker.password", FindingLevel.BAD, f"{where} requires no password", todo)
    if parts.password.lower() in KNOWN_PASSWORDS:
        return Finding("broker.password", FindingLevel.BAD, f"{where} has a well-known password", "choose another")
    if parts.scheme != "rediss" and not is_loopback(parts.hostname or ""):
        todo = "use rediss://, or a private network for gateway, scheduler and worker"
        return Finding(
            "broker.password", FindingLevel.WARN, f"{where} has a password, but it crosses the network in clear", todo
        )
    return Finding("broker.password", FindingLevel.GOOD, f"{where} requires a password")


def database_finding(url: str) -> Finding:
    """Check that the database asks for a password."""
    parts = urlsplit(url)
    if parts.scheme.startswith("sqlite"):
        return Finding("database.password", FindingLevel.GOOD, "the database is a file")
    where = f"the database at {parts.hostname}"
    if not parts.password or parts.password.lower() in KNOWN_PASSWORDS:
        what = f"{where} has no password in its URL" if not parts.password else f"{where} has a password of an example"
        return Finding("database.password", FindingLevel.WARN, what, "choose one: database.url")
    if "sslmode=" not in parts.query and not is_loopback(parts.hostname or ""):
        todo = "add sslmode=verify-full to database.url, or use a network of its own"
        return Finding("database.password", FindingLevel.WARN, f"connections to {where} do not demand TLS", todo)
    return Finding("database.password", FindingLevel.GOOD, f"{where} requires a password")


def gateway_finding(host: str, has_tls: bool, proxies: str) -> Finding:
    """Check that no tokens cross a network in clear."""
    if is_loopback(host) or has_tls:
        return Finding(
            "gateway.tls", FindingLevel.GOOD, f"the gateway listens on {host}" + (" with TLS" if has_tls else "")
        )
    if proxies:
        what = f"the gateway listens on {host} without TLS, behind {proxies}"
        return Finding("gateway.tls", FindingLevel.WARN, what, "let only the proxy reach its port")
    todo = "listen on 127.0.0.1 behind a proxy with TLS (gateway.proxies), or set a certificate"
    return Finding("gateway.tls", FindingLevel.BAD, f"tokens reach the gateway on {host} in clear", todo)


def key_findings(files: Sequence[tuple[str, int]]) -> Iterator[Finding]:
    """Find files with keys and passwords, and their modes, that others may read."""
    for file, mode in files:
        if mode & 0o027:  # read permission of the group is allowed: services may share a key
            yield Finding(
                "keys", FindingLevel.BAD, f"other users may read {file} (mode {mode:04o})", f"chmod 600 {file}"
            )


def workers_findings(walls: Mapping[str, str], tenants: int, install: str) -> Iterator[Finding]:
    """Judge what live workers report of the walls of their boxes, by worker; the same on every machine."""
    kinds = {worker: text.partition(": ")[0] for worker, text in sorted(walls.items())}
    open_ones = {worker: walls[worker].partition(": ")[2] for worker, kind in kinds.items() if kind == UNFENCED}
    where = ", ".join(f"{worker} ({kind})" for worker, kind in kinds.items())
    if open_ones:
        what = "; ".join(f"{worker} cannot fence tenants' programs: {why}" for worker, why in open_ones.items())
        yield Finding("fence", FindingLevel.WARN, what, "see docs/box-fence.md", supersedes="fence")
    else:
        yield Finding("fence", FindingLevel.GOOD, f"{where} isolates tenants' programs", supersedes="fence")
    yield boxes_finding("process", not open_ones, tenants, install)


def boxes_finding(backend: str, is_fenced: bool, tenants: int, install: str) -> Finding:
    """Check that a tenant's programs are isolated from the others' and the platform's."""
    if backend not in PROCESSES:
        return Finding("boxes", FindingLevel.GOOD, f"job boxes are containers ({backend})")
    if is_fenced:
        return Finding("boxes", FindingLevel.GOOD, "job boxes are fenced")
    if tenants > 1 or install.strip() == "*":
        what = f"job boxes are processes without a fence, but the platform has {tenants} tenants"
        todo = "see the finding fence, or set worker.box_backend to podman, docker or kubernetes"
        return Finding("boxes", FindingLevel.BAD, what, todo)
    what = "job boxes are processes without a fence, so the only tenant is trusted like the operator"
    return Finding("boxes", FindingLevel.WARN, what, "before you add a second tenant, see the finding fence")


def slurm_finding() -> Finding:
    """Check that Slurm answers, and that this machine is one of its nodes, with the configured resources."""
    try:
        place, node = find_place(SlurmCommands())
    except RdukitError as error:
        return Finding(
            "slurm", FindingLevel.BAD, error.message, "see docs/slurm.md; a worker does not start in this state"
        )
    where = f"this machine is Slurm's node {node.name}, in {', '.join(node.partitions) or 'no partition'}"
    if any(word in node.state for word in ("DOWN", "DRAIN", "FAIL", "INVAL", "NOT_RESPONDING")):
        todo = f"see sinfo -R; then scontrol update NodeName={node.name} State=RESUME"
        return Finding("slurm", FindingLevel.WARN, f"{where}, which is {node.state}: boxes wait", todo)
    counted = f"{place.gres}:{node.gres[place.gres]}" if place.gres else "no resource for tiles"
    return Finding("slurm", FindingLevel.GOOD, f"{where}, with {counted}")


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def compose_findings(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Find values that the compose file's users forget to choose."""
    password = environment.get("RDUKIT_DATABASE_PASSWORD")
    if password is not None and (not password or password.lower() in KNOWN_PASSWORDS):
        what = "RDUKIT_DATABASE_PASSWORD of the compose file is empty or an example value"
        yield Finding("compose.password", FindingLevel.BAD, what, "choose a long password: openssl rand -hex 32")


def _names(tokens: Sequence[TokenFacts]) -> str:
    shown = ", ".join(f"{token.id} ({token.tenant})" for token in tokens[:5])
    return shown if len(tokens) <= 5 else f"{shown} and {len(tokens) - 5} more"
