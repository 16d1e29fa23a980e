"""Keeps pandas out of processes that are pgsluice's own.

The first time that Arrow makes an array from a list, it imports pandas if that is installed, to be
able to recognise its objects. PySpark does when it first calls the JVM, to say in its own tests
that it is there. That takes a second of CPU, and pgsluice never uses it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType


class _NoPandas:
    """An importer that refuses pandas, and leaves everything else to the others."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is left out", name=name)
        return None


@contextmanager
def without_pandas() -> Iterator[None]:
    """Within this context, pandas is not installed; nothing changes if it is loaded already."""
    importer = _NoPandas()
    sys.meta_path.insert(0, importer)
    try:
        yield
    finally:
        sys.meta_path.remove(importer)


def load_arrow_without_pandas() -> None:
    """Have Arrow find that pandas is not installed; nothing if it is loaded already.

    Only for a process in which no code of a user runs: Arrow takes a pandas Series for any other
    sequence from here on. ``to_pandas`` still imports pandas.
    """
    import pyarrow as pa

    with without_pandas():
        pa.array([0])  # here Arrow looks for pandas, once
