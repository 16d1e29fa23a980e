"""A subscription's record in an object store: one object for each save,
``records/<name>/<number>.json``.

An object has what changed since the one before, or a whole record: the first one, and every
hundredth. It says which object the last whole record is, so that a reader of the newest one knows
what else to read. Numbers have no gaps. Objects before the last but one whole record are deleted.

An object is created only if its name is free. So of two processes that run the same subscription on
two machines, only one can save a record: a start takes it over by a whole record, and the process
that had it gets :class:`SpoolTaken` at its next save. After an error of the store, the object may
still appear, so the next save has the whole record, under the next number that is free.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pgsluice.errors import SpoolError, SpoolTaken
from pgsluice.failpoints import failpoint
from pgsluice.spool.formats import check_format, decode_json, encode_json
from pgsluice.spool.identity import spool_id_of
from pgsluice.spool.layout import ACTIVE_RUNS, RECORDS, checked_name
from pgsluice.spool.object_storage import folder_of
from pgsluice.spool.records.codec import NOT_A_RECORD, RECORD_FORMAT, RecordBuilder, encode_change
from pgsluice.spool.records.record import SubscriptionRecord
from pgsluice.stores.contract import Folder, NameTaken, StoreError
from pgsluice.stores.spool_place import SpoolPlace

_NAME = re.compile(r"\A([0-9]{12})\.json\Z")
WHOLE_EVERY = 100
_TRIES = 3
"""How often a reader lists again, because the owner has deleted what the last listing had."""


def _object_name(number: int) -> str:
    return f"{number:012d}.json"


def _folder(place: SpoolPlace, name: str) -> Folder:
    return folder_of(place, f"{RECORDS}/{checked_name(name)}")


def _tags(folder: Folder) -> dict[int, Hashable]:
    """The tags of a record's objects, by their numbers."""
    found = ((_NAME.match(stored.name), stored.tag) for stored in folder.entries())
    return {int(match[1]): tag for match, tag in found if match}


@dataclass(slots=True)
class _Read:
    """The record as of the newest object, and which objects that and the last whole record are."""

    builder: RecordBuilder
    number: int
    tag: object
    whole_at: int
    whole_tag: object
    record: SubscriptionRecord


class RecordObjectsReader:
    """Reads a subscription's record repeatedly; an unchanged record costs one listing. Raises
    SpoolError if the name cannot be a subscription's.

    Attributes:
        last: what was read; None: there is no record.
    """

    def __init__(self, place: SpoolPlace, name: str) -> None:
        self._place = place
        self._name = name
        self._folder = _folder(place, name)
        self.last: _Read | None = None

    def read(self) -> SubscriptionRecord | None:
        """See :meth:`pgsluice.spool.records.file.RecordFileReader.read`."""
        for _ in range(_TRIES):
            tags = _tags(self._folder)
            if not tags:
                self.last = None
                return None
            newest = max(tags)
            if self.last is None or (self.last.number, self.last.tag) != (newest, tags[newest]):
                try:
                    self.last = self._read(newest, tags)
                except FileNotFoundError:
                    continue
            return self.last.record
        raise self._refused("lacks objects that its newest one needs")

    def _read(self, number: int, tags: Mapping[int, object]) -> _Read:
        """The record as of an object; raises FileNotFoundError if one is not there any more."""
        newest, known = self._content(number), self.last
        if known is None:
            self._check_spool(newest.get("spool_id"))
        try:
            whole_at = int(newest["whole_at"])
            whole_tag = tags.get(whole_at)
            continues = known is not None and known.number < number
            if known is not None and continues and known.whole_tag == whole_tag:
                builder, first = known.builder, known.number + 1
            else:
                builder, first = RecordBuilder(int(newest["format"])), whole_at
            self.last = None  # its builder is about to change
            for each in range(first, number):
                builder.apply(_change(self._content(each)))
            builder.apply(_change(newest))
            record = builder.build()
        except NOT_A_RECORD as error:
            raise self._refused("is not a subscription's record, or it is damaged") from error
        if record.name != self._name:
            raise self._refused(f"is the record of the subscription {record.name}")
        return _Read(builder, number, tags[number], whole_at, whole_tag, record)

    def _content(self, number: int) -> dict[str, Any]:
        name = _object_name(number)
        raw = decode_json(self._folder.read(name))
        if raw is None:
            raise self._refused(f"is damaged: the checksum of {name} is wrong")
        path = f"{self._folder.uri}/{name}"
        check_format(raw.get("format"), path, oldest=RECORD_FORMAT, newest=RECORD_FORMAT)
        if raw.get("number") != number:
            raise self._refused(f"has object {raw.get('number')} under the name of {number}")
        return raw

    def _check_spool(self, spool_id: object) -> None:
        own = spool_id_of(self._place)
        if own is not None and spool_id != own:
            raise self._refused(f"is a record of the spool {spool_id}, not of {own}")

    def _refused(self, why: str) -> SpoolError:
        return SpoolError(
            f"{self._folder.uri} {why}",
            hint="restore the objects; without them, `pgsluice drop CONFIG --subscription "
            f"{self._name}` and start again: its tables are copied again",
            path=self._folder.uri,
        )


_OF_THE_OBJECT = ("format", "spool_id", "number", "whole_at", "writer")


def _change(raw: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in raw.items() if key not in _OF_THE_OBJECT}


class RecordObjects:
    """Writes a subscription's record; only its owner may use it."""

    def __init__(self, place: SpoolPlace, name: str) -> None:
        self._place = place
        self._name = name
        self._folder = _folder(place, name)
        self._owner = uuid.uuid4().hex
        self._number = 0
        self._whole_at = 0
        self._is_doubtful = False
        """Whether the last save failed, and its object may still appear."""
        self._spool_id = spool_id_of(place)

    def open(self) -> SubscriptionRecord | None:
        """Read the record, and take it over: another process that still writes it ends at its next
        save. Raises SpoolError if the record cannot be read, and StoreError if the store failed."""
        reader = RecordObjectsReader(self._place, self._name)
        while True:
            record = reader.read()
            if record is None or reader.last is None:
                return None
            self._number, self._whole_at = reader.last.number, reader.last.whole_at
            with suppress(SpoolTaken):  # the other one has just saved
                self.replace(record)
                return record

    def save(self, before: SubscriptionRecord, record: SubscriptionRecord) -> None:
        """Make a record durable by an object with what changed; raises SpoolTaken if another
        process has saved one, and StoreError if the store failed: the object may still appear."""
        change = encode_change(before, record)
        if self._is_doubtful or (change and self._number + 1 - self._whole_at >= WHOLE_EVERY):
            self.replace(record)
        elif change:
            self._put(change, self._whole_at)

    def replace(self, record: SubscriptionRecord) -> None:
        """Write a whole record; raises as :meth:`save`."""
        if not self._number:  # registers a subscription, perhaps again
            self._number = max(_tags(self._folder), default=0)
        before = self._whole_at
        self._put(encode_change(None, record), None)
        old = [_object_name(number) for number in _tags(self._folder) if number < before]
        if old:
            self._folder.delete(*old)

    def _put(self, change: dict[str, Any], whole_at: int | None) -> None:
        """Create the next object; ``whole_at``: the last whole record's number, None: this one is
        whole."""
        while True:
            number = self._number + 1
            raw = {
                "format": RECORD_FORMAT,
                "spool_id": self._spool_id,
                "number": number,
                "whole_at": number if whole_at is None else whole_at,
                "writer": self._owner,
            }
            failpoint("record.before_put")
            try:
                self._folder.create(_object_name(number), encode_json({**raw, **change}))
            except NameTaken as error:
                if self._is_doubtful and self._is_ours(number):
                    self._number = number
                    continue
                raise SpoolTaken(
                    f"another `pgsluice run` replicates subscription {self._name} of the spool "
                    f"{self._place}",
                    hint="stop one of the two runs: only one can replicate a subscription. The "
                    f"spool's file {ACTIVE_RUNS}/{self._name}.json names the process (pid) and "
                    "the host of the one that started last",
                    path=self._folder.uri,
                ) from error
            except StoreError:
                self._is_doubtful = True
                raise
            failpoint("record.after_put")
            self._number, self._whole_at = number, int(raw["whole_at"] or 0)
            self._is_doubtful = False
            return

    def _is_ours(self, number: int) -> bool:
        raw = decode_json(self._folder.read(_object_name(number)))
        return raw is not None and raw.get("writer") == self._owner
