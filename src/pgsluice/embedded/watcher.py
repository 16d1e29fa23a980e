"""Ends the server when the process that started it has ended, even by SIGKILL.

A clean exit stops the server itself, but a SIGKILL runs none of our code. So a small shell
process waits on a pipe whose other end only we hold. When we are gone it reads end of file,
stops the server (SIGQUIT, PostgreSQL's immediate shutdown) and removes the folder if it was
temporary. It runs under the server's account, so it cannot end other users' processes.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from pgsluice.embedded.account import Account

# $0: the server's folder; $1: "yes" to remove it. A server that just started may not have
# written its pid yet. The folder is removed only after the server has ended. On a busy machine
# either may take long: each is waited for for a minute; but only a second for the pid in a folder
# that stays, where somebody may start another server. A server that has ended stays in the list of
# processes until its parent, which is init by then, has asked for it.
_SCRIPT = """
cd /
if [ "$1" = yes ]; then n=600; else n=10; fi
while [ $n -gt 0 ]; do
    n=$((n - 1))
    pid=$(head -n 1 "$0/data/postmaster.pid" 2>/dev/null)
    if [ -n "$pid" ]; then kill -QUIT "$pid" 2>/dev/null; break; fi
    sleep 0.1
done
n=0
while [ -n "$pid" ] && [ $n -lt 1200 ] && kill -0 "$pid" 2>/dev/null; do
    if read -r _ _ state _ < "/proc/$pid/stat" && [ "$state" = Z ]; then break; fi
    n=$((n + 1))
    sleep 0.05
done
if [ "$1" = yes ]; then rm -rf "$0"; fi
"""


class ParentWatcher:
    """A shell that runs a script after the end of this process, even by SIGKILL.

    It reads from a pipe that only this process can write to, and never does.
    """

    def __init__(self, script: str, *arguments: str, **options: Any) -> None:
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", f"read -r _\n{script}", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal must not reach it
            **options,
        )

    def dismiss(self) -> None:
        """End the watcher without running its script."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()


def watch(folder: Path, account: Account, *, is_temporary: bool) -> ParentWatcher:
    """End the server in ``folder`` when this process has ended."""
    remove = "yes" if is_temporary else "no"
    return ParentWatcher(_SCRIPT, str(folder), remove, **account.run_as())
