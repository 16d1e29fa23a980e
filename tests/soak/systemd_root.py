"""A systemd that is PID 1 of its own name spaces, over this machine's files.

Nothing of this machine changes: what systemd and its units write goes into an overlay in memory,
and its cgroups are below one of the test's own. It shares this machine's network, so that units
reach a server of the test.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

import psutil
import pytest
from tests.soak.report import ROOT
from tests.support.waiting import await_that

_SYSTEMD = Path("/lib/systemd/systemd")
_PYTHON = Path("/usr/bin/python3")
"""Units do not see the homes of users, where another Python may be."""
_CGROUPS = Path("/sys/fs/cgroup/systemd")
_MASKED = (
    *("systemd-udevd.service", "systemd-udev-trigger.service", "systemd-timesyncd.service"),
    *("systemd-logind.service", "systemd-modules-load.service", "systemd-sysctl.service"),
    *("systemd-remount-fs.service", "systemd-networkd.service", "kmod-static-nodes.service"),
    *("dbus.service", "dbus.socket", "getty.target"),
)
"""Of a machine, not of a test."""
_BEGIN = r"""
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$FOLDER/upper"
mkdir "$FOLDER/upper/files" "$FOLDER/upper/work"
R="$FOLDER/root"
layers="lowerdir=/,upperdir=$FOLDER/upper/files,workdir=$FOLDER/upper/work"
mount -t overlay overlay -o "$layers" "$R"
mkdir -p "$R/opt/pgsluice" "$R/old"
mount --bind "$PROGRAM" "$R/opt/pgsluice"
mount -t proc proc "$R/proc"
mount --bind "$R/proc/sys" "$R/proc/sys"
mount -o remount,bind,ro "$R/proc/sys"
mount --bind /dev/null "$R/proc/cgroups"   # no controllers: they are this machine's
mount -t sysfs -o ro sysfs "$R/sys"
mount -t tmpfs tmpfs "$R/sys/fs/cgroup"
mkdir "$R/sys/fs/cgroup/systemd"
mount -t cgroup -o none,name=systemd cgroup "$R/sys/fs/cgroup/systemd"
for each in dev run tmp; do mount -t tmpfs tmpfs "$R/$each"; done
for each in null:3 zero:5 full:7 random:8 urandom:9; do
  mknod -m 666 "$R/dev/${each%:*}" c 1 "${each#*:}"
done
mkdir "$R/dev/shm" "$R/dev/pts"
mount -t tmpfs tmpfs "$R/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$R/dev/pts"
ln -s pts/ptmx "$R/dev/ptmx"
hostname pgsluice-test
cp -r "$FOLDER/files/." "$R/"
for each in $MASKED; do ln -sf /dev/null "$R/etc/systemd/system/$each"; done
rm -rf "$R"/etc/systemd/system/*.wants
chroot "$R" useradd --system --home-dir /var/lib/pgsluice pgsluice
chroot "$R" chown pgsluice /etc/pgsluice/pgsluice.toml
cd "$R"
pivot_root . old
options="--system --unit=test.target --log-target=journal --show-status=no"
begin="umount -l /old; exec env -i container=other PATH=$SEARCH /lib/systemd/systemd $options"
exec chroot . sh -c "$begin"
"""
_TARGET = "[Unit]\nDescription=a test\nRequires=basic.target\nAfter=basic.target\n"
_ACCOUNTING = "\n".join(f"Default{each}Accounting=no" for each in ("CPU", "IO", "Memory", "Tasks"))


class Systemd:
    """Runs commands beside a systemd, as root.

    Args:
        pid: of the systemd, as this machine sees it.
    """

    def __init__(self, pid: int) -> None:
        self._enter = ["nsenter", "-t", str(pid), "-m", "-p", "-u", "-i", "-r", "-w"]

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """A command, to its end."""
        return subprocess.run([*self._enter, *command], capture_output=True, text=True, check=False)

    def show(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.run("systemctl", "show", unit, "--value", "-p", name).stdout.strip()

    def log(self, unit: str) -> str:
        """What a unit has printed, and what systemd says of it."""
        return self.run("journalctl", "--no-pager", "-o", "cat", "-u", unit).stdout


@contextmanager
def systemd(folder: Path, files: Mapping[str, str]) -> Iterator[Systemd]:
    """A systemd whose machine has pgsluice in ``/opt/pgsluice`` and a user ``pgsluice``.

    Skips where it cannot be had.

    Args:
        folder: on a disk, empty.
        files: texts by their path without the first slash.
    """
    if os.geteuid() != 0:
        pytest.skip("a systemd of the test's own needs the rights of root")
    for needed in ("unshare", "nsenter", "pivot_root", "useradd"):
        if shutil.which(needed) is None:
            pytest.skip(f"{needed} is not installed")
    if not (_SYSTEMD.exists() and _PYTHON.exists()):
        pytest.skip("systemd or Debian's Python is not installed")
    if not _CGROUPS.is_dir():
        pytest.skip("this machine has no hierarchy of cgroups by the name of systemd")
    program = _installed()
    units = {"etc/systemd/system/test.target": _TARGET}
    settings = {"etc/systemd/system.conf": f"[Manager]\n{_ACCOUNTING}\n"}
    for path, text in {**units, **settings, **files}.items():
        file = folder / "files" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for each in ("upper", "root"):
        (folder / each).mkdir()
    group = _CGROUPS / f"pgsluice-{os.getpid()}"
    group.mkdir()
    begin = f'echo $$ > {group}/cgroup.procs; exec unshare -p -m -u -i -C --fork sh -c "$BEGIN"'
    environment = {
        "BEGIN": _BEGIN,
        "FOLDER": str(folder),
        "MASKED": " ".join(_MASKED),
        "PROGRAM": str(program),
        "SEARCH": "/usr/sbin:/usr/bin:/sbin:/bin",
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["sh", "-c", begin],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **environment},
        )
    try:
        await_that(lambda: process.poll() is not None or _pid_of(process.pid) is not None)
        pid = _pid_of(process.pid)
        if pid is None:
            pytest.skip(f"systemd does not start here: {(folder / 'log').read_text()[-300:]}")
        one = Systemd(pid)
        await_that(lambda: one.run("systemctl", "is-system-running").stdout == "running\n")
        yield one
    finally:
        if (pid := _pid_of(process.pid)) is not None:
            os.kill(pid, signal.SIGKILL)  # and with it, all of its name space
        process.wait()
        await_that(lambda: _is_removed(group))


def _pid_of(outer: int) -> int | None:
    """The systemd that a process has started."""
    with suppress(psutil.Error):
        for child in psutil.Process(outer).children():
            if child.name() == "systemd":
                return child.pid
    return None


def _is_removed(group: Path) -> bool:
    for each in sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True):
        with suppress(OSError):
            each.rmdir()
    with suppress(OSError):
        group.rmdir()
    return not group.exists()


def _installed() -> Path:
    """What is to be in /opt/pgsluice: the packages, installed once, and pgsluice as it is now."""
    uv = str(Path(sys.executable).with_name("uv"))
    lock = (ROOT / "requirements.lock").read_bytes()
    folder = ROOT / ".cache" / f"systemd-{sha256(lock).hexdigest()[:12]}"
    install = [uv, "pip", "install", "-q", "--python", str(folder / "bin" / "python")]
    commands = [[*install, "--no-deps", "--reinstall-package", "pgsluice", "."]]
    if not folder.exists():
        packages = [*install, "--no-verify-hashes", "-r", "requirements.lock"]
        commands = [[uv, "venv", "-q", "--python", str(_PYTHON), str(folder)], packages, *commands]
    for command in commands:
        subprocess.run(command, cwd=ROOT, check=True)
    program = folder / "bin" / "pgsluice"
    _, _, text = program.read_text().partition("\n")
    program.write_text(f"#!/opt/pgsluice/bin/python\n{text}")
    return folder
