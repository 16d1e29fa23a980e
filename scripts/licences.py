"""Lists the licences of everything that ``pip install "pgsluice[all]"`` brings, as Markdown.

Ends with 1 if a package names no licence, or one that is not known to allow redistribution.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement

_ALLOWED = re.compile(
    r"apache|bsd|mit\b|isc|psf|python software|mpl|mozilla|zlib|unlicense|hpnd|lgpl|lesser general",
    re.IGNORECASE,
)


def needed(name: str, extras: frozenset[str] = frozenset({"all"})) -> dict[str, Distribution]:
    """A package and all that it needs on this machine, by name."""
    found: dict[str, Distribution] = {}
    waiting, seen = [(name, extras)], set()
    while waiting:
        package, wanted = waiting.pop()
        if (package, wanted) in seen:
            continue
        seen.add((package, wanted))
        try:
            one = found[package] = distribution(package)
        except PackageNotFoundError:
            continue
        for text in one.requires or ():
            requirement = Requirement(text)
            contexts = [{"extra": extra} for extra in (*wanted, "")]
            if requirement.marker is None or any(map(requirement.marker.evaluate, contexts)):
                key = re.sub(r"[-_.]+", "-", requirement.name).lower()
                waiting.append((key, frozenset(requirement.extras)))
    return found


def licence_of(one: Distribution) -> str:
    """What a package says of its licence, in a few words; empty: nothing."""
    said = one.metadata.get_all("License-Expression") or []
    named = [
        each.rpartition(" :: ")[2]
        for each in one.metadata.get_all("Classifier") or []
        if each.startswith("License ::")
    ]
    text = (one.metadata.get_all("License") or [""])[0].strip().partition("\n")[0][:60]
    return ", ".join(said or named or [text])


def main() -> int:
    print("| package | version | licence |\n|---|---|---|")
    unknown = []
    for name, one in sorted(needed("pgsluice").items()):
        licence = licence_of(one)
        print(f"| {name} | {one.version} | {licence} |")
        if not _ALLOWED.search(licence):
            unknown.append(name)
    if unknown:
        print(f"look at the licences of: {', '.join(unknown)}", file=sys.stderr)
    return bool(unknown)


if __name__ == "__main__":
    sys.exit(main())
