"""Choice of the platform, and of the token, that clients use; contexts are named platforms (``rdukit context``).

Precedence, highest first: a context named by ``--context`` or the setting ``context``, the setting ``gateway.url``, the
context in use, the login, and the platform of this home folder.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from rdukit.cli.commands import given_context, given_token, token_option
from rdukit.errors import Conflict, InvalidArgument, NotFound, Unauthenticated, Unavailable, suggest
from rdukit.files.atomic import write_atomic
from rdukit.settings import resolve
from rdukit_platform.settings import GATEWAY_PORT, GATEWAY_URL, Home

#: Name of the home folder's platform, or of its login's.
HOME_CONTEXT: Final = "home"
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
#: Only the owner reads files with tokens.
_SECRET: Final = 0o600


@dataclass(frozen=True, slots=True)
class GatewayContext:
    """A platform's address, and the token for it; an empty token: not logged in."""

    url: str
    token: str = ""


@dataclass(frozen=True, slots=True)
class GatewayContexts:
    """Contexts by their names, and the name of the one in use."""

    known: Mapping[str, GatewayContext] = field(default_factory=dict)
    current: str = HOME_CONTEXT

    def find(self, name: str) -> GatewayContext | None:
        """Return a context; ``None``: the home folder's.

        Raises:
            NotFound: there is no context of that name.
        """
        if name == HOME_CONTEXT:
            return None
        if name not in self.known:
            there = (
                suggest(name, (*self.known, HOME_CONTEXT)) or f" There are: {', '.join((HOME_CONTEXT, *self.known))}."
            )
            raise NotFound(
                f"there is no context {name[:80]!r}.{there} Add it with: rdukit context add {name[:80]} --url URL"
            )
        return self.known[name]

    def with_context(self, name: str, context: GatewayContext) -> "GatewayContexts":
        """Return the contexts with one added, or with a changed address or token.

        Raises:
            InvalidArgument: name or address are not valid.
        """
        if name == HOME_CONTEXT or not _NAME.fullmatch(name):
            raise InvalidArgument(
                f"context {name[:80]!r} is not valid; expected up to 63 of a-z, 0-9, '.', '_' and '-', of which the "
                f"first is a letter or digit; {HOME_CONTEXT} is reserved for this home folder"
            )
        if not context.url.startswith(("http://", "https://")):
            raise InvalidArgument(
                f"{context.url!r} is not a gateway's address; expected a URL such as http://127.0.0.1:8080"
            )
        return replace(self, known={**self.known, name: replace(context, url=context.url.rstrip("/"))})

    def added(self, name: str, context: GatewayContext) -> "GatewayContexts":
        """Return the contexts with a new one. Raises as ``with_context``, and ``Conflict`` if the name exists."""
        if name in self.known:
            raise Conflict(
                f"context {name} already exists for {self.known[name].url}; remove it first: rdukit "
                f"context remove {name}"
            )
        return self.with_context(name, context)

    def using(self, name: str) -> "GatewayContexts":
        """Return the contexts with another one in use. Raises as ``find``."""
        self.find(name)
        return replace(self, current=name)

    def without(self, name: str) -> "GatewayContexts":
        """Return the contexts without one; if it was in use, the home folder's is used then. Raises as ``find``."""
        if self.find(name) is None:
            raise InvalidArgument(f"{HOME_CONTEXT} is the platform of this home folder and cannot be removed")
        known = {other: context for other, context in self.known.items() if other != name}
        return GatewayContexts(known, HOME_CONTEXT if self.current == name else self.current)


@dataclass(frozen=True, slots=True)
class GatewayPlace:
    """Address and token of the chosen gateway."""

    url: str
    token: str
    #: Name of their context, or ``HOME_CONTEXT``; empty if they were given or come from settings.
    context: str = ""


def read_contexts(home: Home) -> GatewayContexts:
    """Return the contexts of a home folder.

    Raises:
        InvalidArgument: their file is damaged; no platform is guessed then.
    """
    try:
        found = json.loads(home.contexts_file.read_bytes())
        known = {str(k): GatewayContext(str(v["url"]), str(v["token"])) for k, v in found["contexts"].items()}
        current = str(found["current"])
    except FileNotFoundError:
        return GatewayContexts()
    except (ValueError, KeyError, TypeError, AttributeError) as cause:
        raise InvalidArgument(
            f"{home.contexts_file} is damaged ({cause!r}); correct it, or remove it and add the contexts again: "
            "rdukit context add NAME --url URL"
        ) from cause
    return GatewayContexts(known, current if current in known else HOME_CONTEXT)


def write_contexts(home: Home, contexts: GatewayContexts) -> None:
    """Write the contexts of a home folder; only the owner can read the file."""
    known = {name: {"url": context.url, "token": context.token} for name, context in sorted(contexts.known.items())}
    home.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    content = json.dumps({"current": contexts.current, "contexts": known}, indent=2).encode() + b"\n"
    write_atomic(home.contexts_file, content, mode=_SECRET)


def read_login(home: Home) -> dict[str, str] | None:
    """Return the login that ``rdukit login`` wrote; ``None``: there is no login."""
    try:
        found = json.loads(home.login_file.read_bytes())
        return {"url": str(found["url"]), "token": str(found["token"])}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_login(home: Home, url: str, token: str) -> None:
    """Store the token of a login; without an address it is for the platform of this home folder."""
    home.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(home.login_file, json.dumps({"url": url, "token": token}).encode() + b"\n", mode=_SECRET)


def own_url(home: Home) -> str:
    """Return the address of the platform of this home folder."""
    try:
        return str(json.loads(home.address_file.read_bytes())["url"])
    except (FileNotFoundError, ValueError, KeyError):
        return f"http://127.0.0.1:{resolve(GATEWAY_PORT)}"


def find_context(
    home: Home, url: str | None = None, context: str | None = None
) -> tuple[str, GatewayContext | None]:  # fmt: skip
    """Return the chosen context's name, and the context unless it is the home folder's.

    The name is empty if the address is given or comes from the settings. Raises as ``read_contexts`` and ``find``.
    """
    named = context or given_context()
    if url:
        return "", None
    if not named and resolve(GATEWAY_URL):
        return "", None
    contexts = read_contexts(home)
    name = named or contexts.current
    return name, contexts.find(name)


def find_place(
    home: Home, url: str | None = None, token: str | None = None, context: str | None = None
) -> GatewayPlace:  # fmt: skip
    """Return address and token of the chosen platform, given or found.

    A context's own token precedes the setting, which may be for another platform. A token is sent to its own platform
    only, except the home folder's token, which is sent to a given or set address.

    Raises:
        Unavailable: there is no token, because no platform has run here yet, or the home folder's is still starting.
        Unauthenticated: there is no token for the context.
    """
    name, known = find_context(home, url, context)
    if known is not None:
        found = token or token_option() or known.token or given_token()
        if not found:
            raise Unauthenticated(
                f"context {name} has no token for {known.url}; log in with: rdukit login --context {name}, or pass "
                "--token"
            )
        return GatewayPlace(known.url, found, name)
    login, own = read_login(home), own_url(home)
    elsewhere = url or ("" if name else resolve(GATEWAY_URL)) or (login["url"] if login else "")
    place = elsewhere or own
    if not elsewhere and not home.address_file.exists() and home.find_up() is not None:
        raise Unavailable(f"the platform of {home.folder} is starting; rdukit status shows when it is ready")
    found = token or given_token()
    if not found and login is not None and place == (login["url"] or own):
        found = login["token"]
    return GatewayPlace(place, found or _read_token(home), name)


def _read_token(home: Home) -> str:
    try:
        return home.token_file.read_text().strip()
    except FileNotFoundError as cause:
        raise Unavailable(
            f"there is no API token in {home.token_file}; start a platform with: rdukit up, or log in with: "
            "rdukit login, or pass --token, or set RDUKIT_TOKEN"
        ) from cause


def keep_token(home: Home, old: str, new: str) -> str:
    """Replace the old token of the chosen platform in its place. Returns the place; empty: nowhere."""
    name, context = find_context(home)
    login = read_login(home)
    if context is not None and context.token == old:
        write_contexts(home, read_contexts(home).with_context(name, replace(context, token=new)))
        return str(home.contexts_file)
    if context is None and login is not None and login["token"] == old:
        write_login(home, login["url"], new)
        return str(home.login_file)
    if context is None and home.token_file.is_file() and home.token_file.read_text().strip() == old:
        write_atomic(home.token_file, new.encode() + b"\n", mode=_SECRET)
        return str(home.token_file)
    return ""


def login_target(home: Home, url: str | None) -> GatewayPlace:
    """Return the target of a login: its address, and the context that stores its token; ``HOME_CONTEXT``: none.

    Raises:
        NotFound: no address is given for a context that does not exist yet.
        InvalidArgument: its name or address is not valid.
    """
    contexts, named = read_contexts(home), given_context()
    name = named or (HOME_CONTEXT if url else contexts.current)
    if name != HOME_CONTEXT:
        known = contexts.known.get(name)
        address = url or (known.url if known else resolve(GATEWAY_URL))
        if not address:
            raise NotFound(
                f"there is no context {name[:80]!r} yet; give its URL: rdukit login --context {name[:80]} --url URL"
            )
        return GatewayPlace(contexts.with_context(name, GatewayContext(address)).known[name].url, "", name)
    return GatewayPlace((url or ("" if named else resolve(GATEWAY_URL)) or own_url(home)).rstrip("/"), "", HOME_CONTEXT)


def keep_login(home: Home, target: GatewayPlace, token: str) -> str:
    """Store the token of a login. Returns a note for the user; empty: nothing to add."""
    contexts = read_contexts(home)
    if target.context != HOME_CONTEXT:
        write_contexts(home, contexts.with_context(target.context, GatewayContext(target.url, token)))
        if contexts.current == target.context:
            return ""
        return (
            f"use it for one command with --context {target.context}, or for all with: rdukit context use "
            f"{target.context}"
        )
    write_login(home, "" if target.url == own_url(home) else target.url, token)
    if contexts.current == HOME_CONTEXT:
        return ""
    write_contexts(home, contexts.using(HOME_CONTEXT))
    return f"context {contexts.current} is no longer in use; to return to it: rdukit context use {contexts.current}"


def find_login(home: Home) -> GatewayPlace:
    """Return the chosen login.

    Raises:
        NotFound: there is no login.
    """
    contexts, named = read_contexts(home), given_context()
    name = named or contexts.current
    context = contexts.find(name)
    if context is not None:
        if not context.token:
            raise NotFound(f"you are not logged in at context {name}; log in with: rdukit login --context {name}")
        return GatewayPlace(context.url, context.token, name)
    login = read_login(home)
    if login is None:
        raise NotFound(f"you are not logged in: there is no {home.login_file}; log in with: rdukit login")
    return GatewayPlace(login["url"] or own_url(home), login["token"], HOME_CONTEXT)


def forget_login(home: Home, kept: GatewayPlace) -> None:
    """Delete the token of a login; a context keeps its address."""
    if kept.context == HOME_CONTEXT:
        home.login_file.unlink(missing_ok=True)
    else:
        write_contexts(home, read_contexts(home).with_context(kept.context, GatewayContext(kept.url)))
