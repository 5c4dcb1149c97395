"""Sub-commands of ``rdukit`` that talk to the platform."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rdukit_platform.client.http import ApiClient


def connect() -> "ApiClient":
    """Return a client of the platform, with the address and token of the settings or the home folder.

    Commands import the client with their first request: help and completion start without it.

    Raises:
        Unavailable: no address is known.
    """
    from rdukit_platform.client.http import ApiClient

    return ApiClient.of_home()
