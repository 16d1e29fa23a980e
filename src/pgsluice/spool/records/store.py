"""A subscription's record: any process reads it, the subscription's owner writes it.

It is a file of a spool on a disk (:mod:`pgsluice.spool.records.file`), or objects of a spool in an
object store (:mod:`pgsluice.spool.records.objects`).
"""

from __future__ import annotations

from pathlib import Path

from pgsluice.errors import SpoolError
from pgsluice.spool.records.file import RecordFile, RecordFileReader
from pgsluice.spool.records.objects import RecordObjects, RecordObjectsReader
from pgsluice.spool.records.record import SubscriptionRecord
from pgsluice.stores.spool_place import SpoolPlace

RecordReader = RecordFileReader | RecordObjectsReader


def record_reader(place: SpoolPlace | Path, name: str) -> RecordReader:
    """A reader of a subscription's record; raises SpoolError for a name that cannot be a
    subscription's."""
    place = SpoolPlace.of(place)
    if place.is_remote:
        return RecordObjectsReader(place, name)
    return RecordFileReader(place.folder, name)


def find_record(place: SpoolPlace | Path, name: str) -> SubscriptionRecord | None:
    """Read a subscription's record; None before it registered. Raises SpoolError if it cannot be
    read."""
    return record_reader(place, name).read()


class RecordStore:
    """Saves a subscription's record; only its owner may use it. ``record`` is the last saved
    one."""

    def __init__(self, record: SubscriptionRecord, writer: RecordFile | RecordObjects) -> None:
        self.record = record
        self._writer = writer

    @classmethod
    def open(cls, place: SpoolPlace | Path, name: str) -> RecordStore:
        """Open the record of a subscription; raises SpoolError if it has not registered, or if its
        record cannot be read or written."""
        writer = _writer(SpoolPlace.of(place), name)
        record = writer.open()
        if record is None:
            raise SpoolError(
                f"the spool {place} has no subscription {name} yet",
                hint="start `pgsluice run CONFIG`, which registers the subscription",
            )
        return cls(record, writer)

    @classmethod
    def create(cls, place: SpoolPlace | Path, record: SubscriptionRecord) -> RecordStore:
        """Register a subscription: write its first record durably; this replaces an existing
        record."""
        writer = _writer(SpoolPlace.of(place), record.name)
        writer.replace(record)
        return cls(record, writer)

    def save(self, record: SubscriptionRecord) -> None:
        """Make a record durable.

        Raises:
            SpoolTaken: in a store, another process has saved one.
            SpoolError, StoreError: it could not be written; readers see the previous record, or
                after an error of a store perhaps this one.
        """
        self._writer.save(self.record, record)
        self.record = record


def _writer(place: SpoolPlace, name: str) -> RecordFile | RecordObjects:
    return RecordObjects(place, name) if place.is_remote else RecordFile(place.folder, name)
