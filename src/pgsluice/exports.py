"""Lets a package import a module only when one of the module's exported names is first used.

This speeds up processes that need only a part of a package.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any


def on_demand(package: str, modules: Sequence[str]) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a package, whose exported names these modules define; they are
    asked in this order."""

    def getattribute(name: str) -> Any:
        for module in () if name.startswith("_") else modules:
            found = vars(importlib.import_module(f"{package}.{module}"))
            if name in found:
                return vars(sys.modules[package]).setdefault(name, found[name])
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return getattribute
