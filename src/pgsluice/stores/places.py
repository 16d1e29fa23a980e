"""From a path or URL to the folder that it names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from urllib.parse import unquote, urlsplit

from pgsluice.errors import ConfigError
from pgsluice.stores.contract import Folder
from pgsluice.stores.local import LocalFolder


def local_path(uri: str) -> Path | None:
    """The folder on a disk of this machine; None for one in an object store."""
    if "://" not in uri:
        return Path(uri).absolute()
    url = urlsplit(uri)
    return Path(unquote(url.path)) if url.scheme.lower() == "file" else None


def folder_at(uri: str, options: Mapping[str, str] = MappingProxyType({})) -> Folder:
    """The folder of a path or URL; it need not exist, and nothing is asked of it yet.

    Args:
        options: of an object store, by the names that deltalake has for them.

    Raises:
        ConfigError: the URL is none of a place that we know, or its client is not installed.
    """
    path = local_path(uri)
    if path is None:
        try:
            from pgsluice.stores.remote import RemoteFolder
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"{uri} needs a package that is not installed: {error.name}",
                hint="pip install 'pgsluice[stores]'",
            ) from error
        return RemoteFolder(uri, options)
    return LocalFolder(path)
