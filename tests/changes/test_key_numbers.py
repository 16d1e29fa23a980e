"""The numbers of keys are in files that outlive a version of pgsluice: they never change."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsluice.changes import key_numbers
from pgsluice.changes.key_numbers import numbers_of

_ALL = 2**64 - 1
GOLDEN = [
    0,
    16671172309106497865,
    6343884064341375728,
    7726324832580936837,
    9506087726907147786,
    17235469408947973867,
]


def spread(number: int) -> int:
    """The finalizer of splitmix64."""
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _ALL
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _ALL
    return number ^ (number >> 31)


def number_of(text: bytes) -> int:
    """By its words of eight bytes, the last one with zeros at its end."""
    words = [text[start : start + 8] for start in range(0, len(text), 8)]
    result = len(words)
    for word in words:
        result = spread(result ^ int.from_bytes(word, "little"))
    return spread(result ^ len(text))


@given(st.lists(st.binary(max_size=40)), st.integers(0, 3))
def test_a_text_has_the_number_of_its_words(texts: list[bytes], skipped: int) -> None:
    column = pa.array(texts, pa.binary()).slice(min(skipped, len(texts)))
    found = numbers_of(pa.table({"k": column})).numbers
    assert found.tolist() == [number_of(text) for text in texts[skipped:]]


def test_numbers_are_those_of_files_from_before() -> None:
    texts = ["", "a", "12345678", "ä" * 9, "\0", "\0\0"]
    assert numbers_of(pa.table({"k": texts})).numbers.tolist() == GOLDEN


@pytest.mark.parametrize("size", [7, 8, 9, 300])
def test_many_texts_are_numbered_some_at_a_time(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [bytes([number % 251]) * (number % size) for number in range(500)]
    whole = numbers_of(pa.table({"k": texts})).numbers
    monkeypatch.setattr(key_numbers, "ROWS_AT_ONCE", 7)
    assert np.array_equal(numbers_of(pa.table({"k": texts})).numbers, whole)
    assert whole.tolist() == [number_of(text) for text in texts]
