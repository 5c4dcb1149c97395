"""A platform for programs and notebooks."""

import time
from collections.abc import Callable

import httpx

from rdukit.errors import InvalidArgument
from rdukit.interfaces import Closable
from rdukit_platform.client.artifacts import Artifacts
from rdukit_platform.client.http import ApiClient
from rdukit_platform.client.jobs import Jobs
from rdukit_platform.client.pipelines import Pipelines
from rdukit_platform.client.serving import Endpoints, Experts
from rdukit_platform.client.sweeps import Sweeps
from rdukit_platform.client.tenants import Tenants
from rdukit_platform.client.webhooks import Webhooks


class Platform(Closable):
    """A platform, by its gateway. Thread-safe.

    Without arguments it is the platform that the command line uses: ``client.contexts`` has the precedence.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        context: str | None = None,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Create the client without a connection.

        Args:
            context: name of the platform in ``rdukit context list``, instead of an address.
            transport, sleep: how to send requests and to pause; for ``AsyncPlatform``.

        Raises:
            InvalidArgument: the address is not a gateway's URL, or a context is also given.
            NotFound: there is no such context.
            Unavailable, Unauthenticated: there is no token.
        """
        if url is not None and context is not None:
            raise InvalidArgument(f"url {url!r} and context {context!r} cannot be combined; expected one of them")
        if url is not None and not url.startswith(("http://", "https://")):
            raise InvalidArgument(f"{url!r} is not a gateway's address; expected a URL such as http://127.0.0.1:8080")
        #: All routes, as plain JSON values.
        self.api = ApiClient.of_home(url=url, token=token, transport=transport, sleep=sleep, context=context)
        self.jobs = Jobs(self.api)
        self.pipelines = Pipelines(self.api)
        self.artifacts = Artifacts(self.api)
        self.experts = Experts(self.api)
        self.endpoints = Endpoints(self.api)
        self.sweeps = Sweeps(self.api)
        self.webhooks = Webhooks(self.api)
        self.tenants = Tenants(self.api)

    @property
    def url(self) -> str:
        """Address of the gateway."""
        return self.api.url

    def close(self) -> None:
        """Close the connections."""
        self.api.close()

    def __repr__(self) -> str:
        return f"<Platform {self.url}>"
