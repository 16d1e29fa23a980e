"""Opens the folder of a path or URL."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from urllib.parse import unquote, urlsplit

from pgsluice.errors import ConfigError
from pgsluice.stores.contract import Folder
from pgsluice.stores.local import LocalFolder


def local_path(uri: str) -> Path | None:
    """The folder's path on this machine's disk; None for a URL of an object store."""
    if "://" not in uri:
        return Path(uri).absolute()
    url = urlsplit(uri)
    return Path(unquote(url.path)) if url.scheme.lower() == "file" else None


def folder_at(uri: str, options: Mapping[str, str] = MappingProxyType({})) -> Folder:
    """The folder of a path or URL; it need not exist, and is not accessed yet. ``options`` of an
    object store have deltalake's names. Raises ConfigError if the URL is of an unknown kind, or the
    store's client is not installed."""
    path = local_path(uri)
    if path is None:
        try:
            from pgsluice.stores.remote import RemoteFolder
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"the path {uri} needs the Python package {error.name}, which is not installed",
                hint="pip install 'pgsluice[stores]'",
            ) from error
        return RemoteFolder(uri, options)
    return LocalFolder(path)
