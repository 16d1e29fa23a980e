"""Ranges of keys: buckets of them, by their hash (:mod:`.digest`), that both sides can choose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pgsluice.verification.digest import Mask
from pgsluice.verification.postgres_text import TextForm, postgres_text
from pgsluice.verification.target import bucket_of, md5_of


@dataclass(frozen=True, slots=True)
class KeyRanges:
    """Some of the ranges into which the keys of a table are divided.

    Attributes:
        key: the columns of the key, each with its text form.
        chosen: which ranges, shape (number of ranges,).
        rows: how many rows they have at most, at the source or at the target.
        condition: the SQL condition of their rows at the source, in sessions with the stream's
            settings.
    """

    key: tuple[tuple[str, TextForm], ...]
    chosen: Mask
    rows: int
    condition: str

    @property
    def columns(self) -> tuple[str, ...]:
        """What :meth:`passing` needs."""
        return tuple(name for name, _ in self.key)

    def passing(self, columns: Mapping[str, pa.Array], rows: int) -> Mask:
        """Which rows of the target have keys of these ranges.

        Args:
            columns: those of the key, in the target's types.
            rows: how many.
        """
        texts = [postgres_text(columns[name], form) for name, form in self.key]
        passing: Mask = self.chosen[bucket_of(md5_of(texts, rows), len(self.chosen))]
        return passing

    def __str__(self) -> str:
        return f"{int(np.count_nonzero(self.chosen))} of {len(self.chosen)} ranges of keys"
