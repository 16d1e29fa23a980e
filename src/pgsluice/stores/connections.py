"""The clients of stores in this process: one for each bucket and its options.

A client has threads, which do not exist in a forked child: a child whose parent had used a client
would wait for ever. So a client is opened when it is first used, and such a child gets an error.
Spark's daemon, which forks Python workers, uses no client.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from pgsluice.stores.addresses import Address
from pgsluice.stores.contract import StoreError
from pgsluice.stores.errors import in_words
from pgsluice.stores.options import client_settings

Client = S3Store | GCSStore | AzureStore
_KINDS: dict[str, Callable[..., Any]] = {
    "s3": S3Store.from_url,
    "gcs": GCSStore.from_url,
    "azure": AzureStore.from_url,
}


class Place(NamedTuple):
    """A bucket, and the user's options to access it, sorted. The prefix of the address is ignored
    here."""

    address: Address
    options: tuple[tuple[str, str], ...]


class _Process:
    """The open clients of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.clients: dict[tuple[str, tuple[tuple[str, str], ...]], Client] = {}
        self.has_lost_threads = False

    def after_fork(self) -> None:
        self.lock = threading.Lock()
        self.has_lost_threads |= bool(self.clients)


_here = _Process()
os.register_at_fork(after_in_child=_here.after_fork)


def client_of(place: Place) -> Client:
    """The client of a bucket, opened at its first use; raises StoreError if its options are wrong,
    or if this process was forked after its parent used one."""
    if _here.has_lost_threads:
        raise StoreError(
            f"this process cannot use the store {place.address.root}: its parent process used "
            "the store before it forked this process",
            hint="start this process by multiprocessing's method spawn, or use the store "
            "only after the fork",
        )
    key = place.address.root, place.options
    with _here.lock:
        if key not in _here.clients:
            _here.clients[key] = _opened(place.address, dict(place.options))
        return _here.clients[key]


def _opened(address: Address, options: Mapping[str, str]) -> Client:
    with in_words(address, "open"):
        settings = client_settings(address.cloud, options)
        try:
            made: Client = _KINDS[address.cloud](address.root, **settings)
        except (ValueError, TypeError) as error:
            raise BaseError(str(error)) from None
        return made
