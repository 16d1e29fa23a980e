"""URLs of folders in object stores; reading one needs no client of a store."""

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
"""Of URLs that name a folder: on a disk, or in an object store."""


class Address(NamedTuple):
    """Where a folder lies in an object store.

    Attributes:
        cloud: whose interface the store has; ``s3`` is many stores'.
        bucket: or container.
        account: as a URL of Azure may name it, with its host; else empty.
        prefix: of the folder's names, with ``/`` at its end; empty for the whole bucket.
    """

    cloud: Cloud
    bucket: str
    account: str
    prefix: str

    @property
    def root(self) -> str:
        """The URL of the whole bucket, as object stores' clients take it."""
        if self.account:
            return f"abfss://{self.bucket}@{self.account}"
        return f"{ {'s3': 's3', 'gcs': 'gs', 'azure': 'az'}[self.cloud] }://{self.bucket}"


def why_no_address(url: str) -> str | None:
    """What is wrong with a URL as that of a folder; None: nothing, or it is no URL."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return None
    if scheme.lower() not in SCHEMES:
        return (
            f'is a URL of "{scheme}", where Delta tables cannot be written; it can be a folder '
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
    """Where a URL points to.

    Raises:
        ConfigError: it is none of an object store that we know.
    """
    if why := why_no_address(url):
        raise ConfigError(f"{url} {why}")
    scheme, _, rest = url.partition("://")
    authority, _, path = rest.partition("/")
    bucket, _, account = authority.partition("@")
    parts = [part for part in unquote(path).split("/") if part]
    return Address(_CLOUDS[scheme.lower()], bucket, account, "".join(f"{part}/" for part in parts))
