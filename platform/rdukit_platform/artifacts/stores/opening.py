"""Opening the store of artifacts that the settings name."""

from rdukit.settings import resolve
from rdukit_platform.artifacts.store import BlobStore
from rdukit_platform.artifacts.stores.bucket import Bucket
from rdukit_platform.artifacts.stores.cache import ContentCache
from rdukit_platform.artifacts.stores.folder import FolderStore
from rdukit_platform.artifacts.stores.s3 import S3Store
from rdukit_platform.settings import ARTIFACTS_COPY_BYTES, Home


def open_store(home: Home) -> BlobStore:
    """Return the store of artifacts that a home folder's settings name; a bucket is not contacted yet."""
    return open_bucket(home, home.bucket) if home.bucket else FolderStore(home.artifacts)


def open_bucket(home: Home, address: str) -> S3Store:
    """Return the store in a bucket, with a cache in a home folder.

    Raises:
        ValueError: ``address`` is not ``s3://BUCKET/PREFIX``.
    """
    return S3Store(Bucket(address), ContentCache(home.copies, resolve(ARTIFACTS_COPY_BYTES)))
