"""Avoids the import of pandas in pgsluice's own processes.

Arrow imports pandas, if it is installed, when it first converts a list, in order to recognise
pandas objects. PySpark imports it at its first call of the JVM, for its own tests. The import takes
a second of CPU, and pgsluice never uses pandas.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType


class _NoPandas:
    """An importer that refuses pandas and passes all other modules on."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("pgsluice does not use pandas", name=name)
        return None


@contextmanager
def without_pandas() -> Iterator[None]:
    """A context in which pandas seems not to be installed; no effect if it is already imported."""
    importer = _NoPandas()
    sys.meta_path.insert(0, importer)
    try:
        yield
    finally:
        sys.meta_path.remove(importer)


def load_arrow_without_pandas() -> None:
    """Let Arrow find that pandas is not installed; no effect if it is already imported.

    Only for processes without user code: Arrow then treats a pandas Series as any other sequence.
    ``to_pandas`` still imports pandas.
    """
    import pyarrow as pa

    with without_pandas():
        pa.array([0])  # here Arrow looks for pandas, once
