"""Asks pip-audit for known vulnerabilities of the locked packages.

Ends with 1 if there are any, and with 2 if nothing was audited: the service cannot be reached, or
answers for none of the packages, as a mirror of the index without advisories does.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

_VERSION = "2.9.0"
_LOCK = Path(__file__).parents[1] / "requirements.lock"


def main() -> int:
    command = [
        *(str(Path(sys.executable).with_name("uv")), "tool", "run", "-q"),
        *(f"pip-audit=={_VERSION}", "--requirement", str(_LOCK), "--disable-pip"),
        *("--require-hashes", "--format", "json", "--progress-spinner", "off"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        lines = done.stderr.strip().splitlines() or ["it printed nothing"]
        print(f"NOT AUDITED: pip-audit could not work: {lines[-1]}")
        return 2
    audited = [package for package in packages if "skip_reason" not in package]
    if not audited:
        print(f"NOT AUDITED: the advisory service knows none of {len(packages)} packages here")
        return 2
    found = 0
    for package in audited:
        for one in package["vulns"]:
            found += 1
            fixed = ", ".join(one["fix_versions"]) or "no version yet"
            print(f"{package['name']} {package['version']}: {one['id']}, fixed in {fixed}")
    skipped = len(packages) - len(audited)
    print(f"{len(audited)} packages audited, {skipped} not known there: {found} vulnerabilities")
    return found > 0


if __name__ == "__main__":
    sys.exit(main())
