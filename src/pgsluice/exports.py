"""Lets a package import a module only when one of the module's exported names is first used.

This speeds up processes that need only a part of a package.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any


def on_demand(package: str, modules: Sequence[str]) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a package.

    Args:
        modules: the modules that define the names of the package's ``__all__``.
    """

    def getattribute(name: str) -> Any:
        own = vars(sys.modules[package])
        if name not in own["__all__"]:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        for module in modules:
            found = vars(importlib.import_module(f"{package}.{module}"))
            own.update({each: found[each] for each in own["__all__"] if each in found})
        return own[name]

    return getattribute
