"""Contexts: names of platforms on other machines, each with its gateway's address and a file with a token.

The context ``default`` is the platform of this home folder; it is not in the file.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from rdukit.cli.commands import given_context
from rdukit.errors import Conflict, InvalidArgument, NotFound, Unavailable, suggest
from rdukit.files.atomic import write_json_atomic
from rdukit.http.webhooks import check_url
from rdukit.settings import parse_token, resolve
from rdukit_platform.settings import GATEWAY_URL, Home

DEFAULT: Final = "default"
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True)
class GatewayContext:
    """A platform under a name."""

    name: str
    url: str
    #: None: a token has to be given otherwise.
    token_file: Path | None = None

    def read_token(self) -> str:
        """Return the token of the file.

        Raises:
            Unavailable: there is none.
        """
        try:
            if self.token_file is not None:
                return parse_token(f"@{self.token_file}")
        except ValueError as cause:
            raise Unavailable(f"context {self.name}: {cause}") from cause
        raise Unavailable(f"context {self.name} has no token file; pass --token, set RDUKIT_TOKEN, or add it with one")


@dataclass(frozen=True, slots=True)
class GatewayContexts:
    """Contexts of a home folder, and the one that is chosen."""

    current: str = DEFAULT
    contexts: Mapping[str, GatewayContext] = field(default_factory=dict)

    def get(self, name: str) -> GatewayContext | None:
        """Return a context; None: the platform of this home folder.

        Raises:
            NotFound: there is none of this name.
        """
        if name == DEFAULT:
            return None
        if name not in self.contexts:
            raise NotFound(
                f"there is no context {name!r}.{suggest(name, self.contexts)} List them with: rdukit context list"
            )
        return self.contexts[name]

    def added(self, context: GatewayContext) -> "GatewayContexts":
        """Return these with one more.

        Raises:
            InvalidArgument: name or address are not legal.
            Conflict: there is one of this name.
        """
        if not _NAME.fullmatch(context.name):
            raise InvalidArgument(f"context {context.name!r} is not legal; legal: a-z, 0-9, and . _ - after the first")
        check_url(context.url, "url")
        if context.name == DEFAULT or context.name in self.contexts:
            raise Conflict(f"there is a context {context.name} already; remove it first, or take another name")
        return GatewayContexts(self.current, {**self.contexts, context.name: context})

    def chosen(self, name: str) -> "GatewayContexts":
        """Return these with another one chosen. Raises as ``get``."""
        self.get(name)
        return GatewayContexts(name, self.contexts)

    def removed(self, name: str) -> "GatewayContexts":
        """Return these without one; if it was chosen, ``default`` is. Raises as ``get``.

        Raises:
            Conflict: it is ``default``, which is always there.
        """
        if self.get(name) is None:
            raise Conflict("the context default is the platform of this home folder, and stays")
        left = {key: value for key, value in self.contexts.items() if key != name}
        return GatewayContexts(DEFAULT if self.current == name else self.current, left)


def read_contexts(home: Home) -> GatewayContexts:
    """Read the contexts of a home folder.

    Raises:
        InvalidArgument: the file is not what ``write_contexts`` writes.
    """
    try:
        found = json.loads(home.contexts_file.read_bytes())
        contexts = {
            name: GatewayContext(name, str(each["url"]), Path(each["token_file"]) if each["token_file"] else None)
            for name, each in found["contexts"].items()
        }
        return GatewayContexts(str(found["current"]), contexts)
    except FileNotFoundError:
        return GatewayContexts()
    except (ValueError, KeyError, TypeError, AttributeError) as cause:
        raise InvalidArgument(
            f"{home.contexts_file} is not a file of contexts ({cause}); remove it, and add them again"
        ) from cause


def write_contexts(home: Home, contexts: GatewayContexts) -> None:
    """Write the contexts of a home folder, for this user to read."""
    home.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    shown = {
        name: {**asdict(each), "token_file": str(each.token_file or "")} for name, each in contexts.contexts.items()
    }
    write_json_atomic(home.contexts_file, {"current": contexts.current, "contexts": shown}, mode=0o600)


def choose_context(home: Home, asked: str | None = None) -> GatewayContext | None:
    """Return the context that is to be used; None: the platform of the settings, or of this home folder.

    One that is named (as ``asked``, by ``--context`` or ``RDUKIT_CONTEXT``) goes before the setting ``gateway.url``,
    and that goes before the one that was chosen by ``rdukit context use``.

    Raises:
        NotFound: there is none of this name.
    """
    named = asked or given_context()
    if named:
        return read_contexts(home).get(named)
    if resolve(GATEWAY_URL):
        return None
    contexts = read_contexts(home)
    return contexts.get(contexts.current)
