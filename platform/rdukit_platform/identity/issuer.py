"""The OpenID Connect issuer that the settings name: its documents, its keys, and the exchange of codes."""

import json
import logging
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

import httpx
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from rdukit.errors import InvalidArgument, Unauthenticated, Unavailable
from rdukit.http.answers import PLAIN, read_bounded, refuse_packed
from rdukit.interfaces import Clock
from rdukit.settings import resolve
from rdukit_platform.identity.claims import (
    ClaimedIdentity,
    KeyUnknown,
    challenge_of,
    check_issuer_url,
    read_identity,
    verify_bearer,
)
from rdukit_platform.identity.claims import verify_id_token as verify
from rdukit_platform.identity.settings import (
    OIDC_BEARER_AUDIENCES,
    OIDC_CLIENT_ID,
    OIDC_CLIENT_SECRET_FILE,
    OIDC_GROUPS_CLAIM,
    OIDC_ISSUER,
    OIDC_SCOPES,
    OIDC_TLS_CA,
    OIDC_TRUST_EMAIL,
)

logger = logging.getLogger(__name__)

#: Seconds after which the issuer's documents are fetched again; its keys are fetched when a new one is used.
KEEP_S: Final = 3600.0
#: Shortest time in seconds between fetches of the keys.
REFRESH_S: Final = 5.0
TIMEOUT_S: Final = 10.0
#: Errors of an issuer about the client, not the code: another login does not help.
_NOT_US: Final = frozenset({"invalid_client", "unauthorized_client"})
MAX_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Documents:
    """Metadata that the issuer publishes."""

    authorization_endpoint: str
    token_endpoint: str
    userinfo_endpoint: str
    jwks_uri: str
    posts_secret: bool
    read_at: float


def is_configured() -> bool:
    """Return whether the settings name an issuer."""
    return bool(resolve(OIDC_ISSUER))


class Issuer:
    """The issuer, contacted only for logins. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._documents: Documents | None = None
        self._keys: KeySet | None = None
        self._keys_read_at = float("-inf")
        #: Time of the last fetch of keys that failed or is under way.
        self._keys_failed_at = float("-inf")

    def warm_up(self) -> None:
        """Read the issuer's documents, so that the next address is known at once. Raises as ``authorization_url``."""
        self._read_documents()

    def authorization_url(self, redirect_uri: str, state: str, nonce: str, verifier: str) -> str:
        """Return the URL to which a browser is sent for the login.

        Raises:
            Unavailable: the issuer does not answer, or not as an issuer.
            InvalidArgument: the settings are not valid.
        """
        asked = {
            "response_type": "code", "client_id": _client_id(), "redirect_uri": redirect_uri,
            "scope": resolve(OIDC_SCOPES), "state": state, "nonce": nonce,
            "code_challenge": challenge_of(verifier), "code_challenge_method": "S256",
        }  # fmt: skip
        url = self._read_documents().authorization_endpoint
        return f"{url}{'&' if '?' in url else '?'}{urlencode(asked)}"

    def redeem(self, code: str, verifier: str, redirect_uri: str, nonce: str) -> ClaimedIdentity:
        """Exchange a code for the identity of the user.

        Raises:
            Unauthenticated: the issuer refuses the code, or its ID token is not valid.
            Unavailable: the issuer does not answer, or does not accept this platform.
        """
        documents, client_id, secret = self._read_documents(), _client_id(), _read_secret()
        form = {
            "grant_type": "authorization_code", "code": code, "redirect_uri": redirect_uri, "code_verifier": verifier,
        }  # fmt: skip
        headers = {}
        if secret and not documents.posts_secret:
            pair = f"{quote(client_id, safe='')}:{quote(secret, safe='')}"
            headers["Authorization"] = httpx.BasicAuth(*pair.split(":"))._auth_header
        else:
            form |= {"client_id": client_id} | ({"client_secret": secret} if secret else {})
        status, answer = self._ask("POST", documents.token_endpoint, headers, form)
        text = answer.get("id_token")
        if status != httpx.codes.OK or not isinstance(text, str):
            said = str(answer.get("error", f"status {status}"))[:64]
            if said in _NOT_US:
                logger.warning("the issuer does not accept this platform error=%s client_id=%s", said, client_id)
                raise Unavailable(
                    f"the issuer does not accept this platform ({said}); an administrator must check "
                    f"{OIDC_CLIENT_ID.name} and {OIDC_CLIENT_SECRET_FILE.name}"
                )
            raise Unauthenticated(f"the issuer rejected this login's code ({said}); log in again")
        claims = dict(self._verify(text, nonce))
        groups_claim = resolve(OIDC_GROUPS_CLAIM)
        access = answer.get("access_token")
        if documents.userinfo_endpoint and isinstance(access, str) and not {"email", groups_claim} <= set(claims):
            status, more = self._ask("GET", documents.userinfo_endpoint, {"Authorization": f"Bearer {access}"})
            if status == httpx.codes.OK and more.get("sub") == claims["sub"]:
                claims = {**more, **claims}
        return read_identity(claims, groups_claim, trust_email=resolve(OIDC_TRUST_EMAIL))

    def read_bearer(self, text: str) -> tuple[ClaimedIdentity, float]:
        """Return the identity of an API call's bearer token, and the token's end.

        Raises:
            Unauthenticated: the token is not valid, or the settings allow no such tokens.
            Unavailable: the issuer's keys are not known, and it does not answer.
        """
        audiences = frozenset(filter(None, map(str.strip, resolve(OIDC_BEARER_AUDIENCES).split(","))))
        issuer = resolve(OIDC_ISSUER)
        if not audiences or not issuer:
            raise Unauthenticated(
                "this platform does not accept issuer tokens; an administrator may allow them by "
                f"{OIDC_BEARER_AUDIENCES.name}; otherwise log in with: rdukit login"
            )
        try:
            claims = verify_bearer(text, self._read_keys(), issuer=issuer, audiences=audiences, now=self._clock.now())
        except KeyUnknown:
            keys = self._read_keys(is_new=True)
            claims = verify_bearer(text, keys, issuer=issuer, audiences=audiences, now=self._clock.now())
        identity = read_identity(claims, resolve(OIDC_GROUPS_CLAIM), trust_email=resolve(OIDC_TRUST_EMAIL))
        return identity, float(claims["exp"])

    def _verify(self, text: str, nonce: str) -> Mapping[str, Any]:
        wanted = {"issuer": resolve(OIDC_ISSUER), "client_id": _client_id(), "nonce": nonce}
        try:
            return verify(text, self._read_keys(), **wanted, now=self._clock.now())
        except KeyUnknown:
            return verify(text, self._read_keys(is_new=True), **wanted, now=self._clock.now())

    def _read_keys(self, *, is_new: bool = False) -> KeySet:
        with self._lock:
            now = self._clock.now()
            age = now - self._keys_read_at
            if self._keys is not None and age < (REFRESH_S if is_new else KEEP_S):
                return self._keys
            # Requests with tokens do not wait for an issuer that has just failed to answer.
            if now - self._keys_failed_at < REFRESH_S:
                raise Unavailable("the login issuer did not answer a moment ago; try again in a few seconds")
            self._keys_failed_at = now
        status, answer = self._ask("GET", self._read_documents().jwks_uri)
        try:
            if status != httpx.codes.OK:
                raise ValueError(f"status {status}")
            keys = KeySet.import_key_set(answer)  # type: ignore[arg-type]
        except (JoseError, ValueError, TypeError, KeyError) as cause:
            raise Unavailable(f"the issuer's keys cannot be read: {cause}") from cause
        with self._lock:
            self._keys, self._keys_read_at, self._keys_failed_at = keys, now, float("-inf")
        return keys

    def _read_documents(self) -> Documents:
        issuer = check_issuer_url(resolve(OIDC_ISSUER), OIDC_ISSUER.name)
        with self._lock:
            known, now = self._documents, self._clock.now()
        if known is not None and now - known.read_at < KEEP_S:
            return known
        try:
            status, found = self._ask("GET", f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        except Unavailable:
            if known is None:
                raise
            return known  # they hardly ever change
        if status != httpx.codes.OK or found.get("issuer") != issuer:
            raise Unavailable(
                f"{issuer} (oidc.issuer) has no OpenID configuration in its own name: status {status}, "
                f"issuer {str(found.get('issuer'))[:200]!r}"
            )
        urls = {}
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri", "userinfo_endpoint"):
            url = str(found.get(name) or "")
            urls[name] = check_issuer_url(url, f"the issuer's {name}") if url or name != "userinfo_endpoint" else ""
        methods = found.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        made = Documents(
            **urls, posts_secret="client_secret_basic" not in methods and "client_secret_post" in methods, read_at=now
        )
        with self._lock:
            self._documents = made
        return made

    def _ask(
        self, method: str, url: str, headers: Mapping[str, str] | None = None, form: Mapping[str, str] | None = None
    ) -> tuple[int, dict[str, Any]]:
        context = ssl.create_default_context(cafile=resolve(OIDC_TLS_CA) or None)
        try:
            with (
                httpx.Client(timeout=TIMEOUT_S, trust_env=False, verify=context) as client,
                client.stream(
                    method, url, headers={**(headers or {}), "Accept": "application/json", **PLAIN}, data=form
                ) as answer,
            ):  # fmt: skip
                refuse_packed(answer.headers, "the issuer")
                found = json.loads(read_bounded(answer.iter_raw(), MAX_BYTES, "the issuer") or b"{}")
                return answer.status_code, found if isinstance(found, dict) else {}
        except (httpx.HTTPError, ValueError) as cause:
            logger.warning("the issuer does not answer url=%s error=%s", url, type(cause).__name__)
            raise Unavailable(
                "the login issuer does not answer at present; existing logins stay valid. Try again"
            ) from cause


def _client_id() -> str:
    client_id = resolve(OIDC_CLIENT_ID)
    if not client_id:
        raise InvalidArgument("oidc.issuer is set and oidc.client_id is not; set both, or neither")
    return client_id


def _read_secret() -> str:
    file = resolve(OIDC_CLIENT_SECRET_FILE)
    try:
        return Path(file).expanduser().read_text().strip() if file else ""
    except OSError as cause:
        raise InvalidArgument(f"oidc.client_secret_file: {file} cannot be read: {cause.strerror}") from cause
