"""Parses URLs of folders in object stores, without a client of a store."""

from __future__ import annotations

from typing import Literal, NamedTuple
from urllib.parse import unquote

from pgsluice.errors import ConfigError

Cloud = Literal["s3", "gcs", "azure"]

_CLOUDS: dict[str, Cloud] = {
    **dict.fromkeys(("s3", "s3a"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gcs"),
    **dict.fromkeys(("az", "azure", "abfs", "abfss", "adl"), "azure"),
}
SCHEMES = ("file", *_CLOUDS)
"""Schemes of URLs for folders, on a disk or in an object store."""


class Address(NamedTuple):
    """The location of a folder in an object store.

    Attributes:
        cloud: the store's interface; many stores have that of ``s3``.
        bucket: the bucket or container.
        account: for Azure: the account in the URL, with its host; else empty.
        prefix: the prefix of names in the folder, ending with ``/``; empty for the whole bucket.
    """

    cloud: Cloud
    bucket: str
    account: str
    prefix: str

    @property
    def root(self) -> str:
        """The URL of the whole bucket, in the form of object stores' clients."""
        if self.account:
            return f"abfss://{self.bucket}@{self.account}"
        return f"{ {'s3': 's3', 'gcs': 'gs', 'azure': 'az'}[self.cloud] }://{self.bucket}"


def cloud_of(uri: str) -> Cloud | None:
    """The interface of a URL's object store; None for a path, or a URL of a disk."""
    scheme, separator, _ = uri.partition("://")
    return _CLOUDS.get(scheme.lower()) if separator else None


def why_no_address(url: str) -> str | None:
    """Why a URL cannot be that of a folder; None: it can, or the text is not a URL."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return None
    if scheme.lower() not in SCHEMES:
        return (
            f'is a URL of "{scheme}", where pgsluice cannot write; it can be a folder '
            f"or a URL of {', '.join(SCHEMES)}"
        )
    if scheme.lower() == "file":
        return None
    if "?" in rest or "#" in rest:
        return 'has a "?" or "#", which a URL of an object store may not have'
    authority, _, path = rest.partition("/")
    if not authority.partition("@")[0]:
        return "names no bucket"
    if "@" in authority and _CLOUDS[scheme.lower()] != "azure":
        return "may not have a user or a password; storage_options has a place for keys"
    if any(part in (".", "..") for part in path.split("/")):
        return 'may not have "." or ".." as a part'
    return None


def address_of(url: str) -> Address:
    """Parse the location in a URL; raises ConfigError if it is not the URL of a known object
    store."""
    if why := why_no_address(url):
        raise ConfigError(f"{url} {why}")
    scheme, _, rest = url.partition("://")
    authority, _, path = rest.partition("/")
    bucket, _, account = authority.partition("@")
    parts = [part for part in unquote(path).split("/") if part]
    return Address(_CLOUDS[scheme.lower()], bucket, account, "".join(f"{part}/" for part in parts))
