"""The steps of a Containerfile in an empty Debian root, where no builder of containers works.

Each stage is a folder with Debian's base system in which root runs the steps by ``chroot``; what
runs in the end has name spaces of its own for processes and mounts, is PID 1, and has a read-only
root. Packages come from where this machine has its own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import NamedTuple

import pytest
from tests.soak.debian import debian_package

_SAYS_NOTHING_HERE = {"ARG", "VOLUME", "EXPOSE"}
_WAYS_TO_PACKAGES = (
    "etc/hosts",  # the name of this machine, which Spark looks up
    "etc/resolv.conf",
    "etc/pip.conf",
    "etc/apt/sources.list.d",
    "etc/apt/apt.conf.d",
    "etc/ssl/certs",
    "usr/share/keyrings",
    "usr/share/ca-certificates",
    "usr/local/share/ca-certificates",
)
_ENVIRONMENT = re.compile(r"\A(PIP_|SSL_CERT_|.*_PROXY\Z|.*_proxy\Z)")
_PATH = "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Image(NamedTuple):
    """What the last stage has made."""

    root: Path
    environment: Mapping[str, str]
    user: str
    folder: str
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    stop_signal: signal.Signals


def steps(text: str) -> Iterator[tuple[str, str]]:
    """The instructions of a Containerfile, each in one line."""
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        if line.strip():
            name, _, rest = line.strip().partition(" ")
            yield name, rest.strip()


def debian_root(folder: Path) -> Path:
    """Debian's base system with Python; skips where it cannot be had."""
    if os.geteuid() != 0:
        pytest.skip("an empty root needs the rights of root")
    for needed in ("unshare", "chroot"):
        if shutil.which(needed) is None:
            pytest.skip(f"{needed} is not installed")
    tool = debian_package("debootstrap")
    targets = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)"],
        capture_output=True,
        text=True,
        check=True,
    )
    mirror = next(uri for uri in targets.stdout.splitlines() if uri.rstrip("/").endswith("/debian"))
    codename = re.search(r"(?m)^VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text())
    assert codename is not None
    root = folder / "base"
    made = subprocess.run(
        [
            "sh",
            tool / "usr" / "sbin" / "debootstrap",
            "--variant=minbase",
            "--include=python3,python3-venv,ca-certificates",
            codename[1],
            root,
            mirror,
        ],
        env={**os.environ, "DEBOOTSTRAP_DIR": str(tool / "usr" / "share" / "debootstrap")},
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"Debian's base system cannot be had: {made.stderr.strip()[-200:]}")
    (root / "usr" / "local" / "bin" / "python").symlink_to("/usr/bin/python3")
    for one in _WAYS_TO_PACKAGES:
        if Path("/", one).exists():
            subprocess.run(["cp", "-aT", Path("/", one), root / one], check=True)
    return root


def build(containerfile: Path, context: Path, base: Path, folder: Path) -> Image:
    """Run the steps.

    Args:
        base: the root that each stage begins with.
        folder: for the stages' roots.
    """
    roots: dict[str, Path] = {}
    root, user, at = base, "0", "/"
    environment = {"PATH": _PATH}
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    stop = signal.SIGTERM
    for name, rest in steps(containerfile.read_text()):
        if name == "FROM":
            stage = rest.partition(" AS ")[2] or "last"
            roots[stage] = root = folder / stage
            subprocess.run(["cp", "-a", base, root], check=True)
            environment = {"PATH": _PATH}
        elif name == "RUN":
            _run_step(root, environment, rest)
        elif name == "COPY":
            *sources, target = rest.split()
            from_root = context
            if sources[0].startswith("--from="):
                from_root = roots[sources.pop(0).removeprefix("--from=")]
            for source in sources:
                _copy(from_root / source.lstrip("/"), root / target.lstrip("/"), target)
        elif name == "ENV":
            for key, value in re.findall(r"(\w+)=(\S+)", rest):
                environment[key] = value.replace("$PATH", environment["PATH"])
        elif name == "USER":
            user = rest
        elif name == "WORKDIR":
            at = rest
        elif name == "ENTRYPOINT":
            entrypoint = tuple(json.loads(rest))
        elif name == "CMD":
            command = tuple(json.loads(rest))
        elif name == "STOPSIGNAL":
            stop = signal.Signals[rest]
        else:
            assert name in _SAYS_NOTHING_HERE, name
    return Image(root, environment, user, at, entrypoint, command, stop)


def _copy(source: Path, target: Path, name: str) -> None:
    into = target / source.name if name.endswith("/") else target
    into.parent.mkdir(parents=True, exist_ok=True)
    # As a builder does, the content of a folder comes into the target.
    what = f"{source}/." if source.is_dir() else str(source)
    if source.is_dir():
        into = target
        into.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-a", what, into], check=True)


def _run_step(root: Path, environment: Mapping[str, str], step: str) -> None:
    ways = {name: value for name, value in os.environ.items() if _ENVIRONMENT.match(name)}
    mounts = f"mount --bind /proc {root}/proc && mount --rbind /dev {root}/dev"
    done = subprocess.run(
        [
            *("unshare", "--mount", "--propagation", "private", "sh", "-c"),
            f"{mounts} && exec chroot {quote(str(root))} /bin/sh -c {quote(step)}",
        ],
        env={**ways, **environment, "DEBIAN_FRONTEND": "noninteractive"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"RUN {step}\n{done.stdout[-1000:]}{done.stderr[-2000:]}"


@contextmanager
def container(
    image: Image, mounts: Mapping[str, Path], *command: str, log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """What the image runs, with a read-only root and an empty ``/tmp``; it gets the image's stop
    signal at the end of the block.

    Args:
        mounts: folder of the image -> one of this machine.
        command: instead of the image's own; none: that.
        log: gets what it prints.
    """
    root = quote(str(image.root))
    for inside in mounts:
        (image.root / inside.lstrip("/")).mkdir(parents=True, exist_ok=True)
    variables = [f"{name}={value}" for name, value in image.environment.items()]
    program = [*variables, *image.entrypoint, *(command or image.command)]
    at_work = f'cd {image.folder} && exec env -i "$@"'
    lines = [
        "set -e",
        f"mount --bind {root} {root}",
        f"mount -t proc proc {root}/proc",
        f"mount --rbind /dev {root}/dev",
        f"mount -t tmpfs tmpfs {root}/tmp",
        *(f"mount --bind {quote(str(here))} {root}{inside}" for inside, here in mounts.items()),
        f"mount -o remount,bind,ro {root}",
        f"exec chroot --userspec={image.user}:{image.user} {root} /bin/sh -c"
        f" {quote(at_work)} -- " + " ".join(quote(word) for word in program),
    ]
    with log.open("ab") as out:
        process = subprocess.Popen(
            [
                *("unshare", "--mount", "--propagation", "private", "--pid", "--fork"),
                *("--kill-child", "sh", "-c", "\n".join(lines)),
            ],
            stdout=out,
            stderr=out,
        )
    try:
        yield process
        _signal_first(process, image.stop_signal)
    except BaseException:
        _signal_first(process, signal.SIGKILL)
        raise
    finally:
        process.wait()


def _signal_first(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to PID 1 of the name space: unshare does not pass signals to its child."""
    if process.poll() is not None:
        return
    child = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process.pid)],
        capture_output=True,
        text=True,
        check=False,
    )
    for pid in child.stdout.split():
        os.kill(int(pid), number)
