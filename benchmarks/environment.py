"""Getting the peers: Python packages, Debian packages and jars, all by name and only when missing.

Each function answers a path or raises `Unavailable` with the reason in words, which becomes the contestant's line
in the table. Nothing is installed into the virtual environment that runs the benchmarks. Debian's own services are
never started: a policy file forbids it during the installation and the units are disabled afterwards.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.processes import STATE

INSTALL_S_MAX = 600.0
_REQUIREMENTS = Path(__file__).resolve().parent / "peers" / "requirements.txt"
_POLICY = Path("/usr/sbin/policy-rc.d")


class Unavailable(Exception):
    """The peer cannot be had on this machine; the text says why."""


def _run(what: str, command: list[str], environment: dict[str, str] | None = None) -> None:
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_S_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{what}: {error}") from error
    if done.returncode != 0:
        last = " ".join((done.stderr or done.stdout).strip().splitlines()[-2:])
        raise Unavailable(f"{what}: exit {done.returncode}: {last[-300:]}")


@functools.cache
def peers_python() -> Path:
    """The interpreter with the peers' client libraries; rebuilt when requirements.txt changed."""
    home = STATE / "venv"
    python = home / "bin" / "python"
    stamp = home / "requirements.sha256"
    wanted = hashlib.sha256(_REQUIREMENTS.read_bytes()).hexdigest()
    if python.exists() and stamp.exists() and stamp.read_text() == wanted:
        return python
    STATE.mkdir(exist_ok=True)
    _run("making the peers' virtual environment", [sys.executable, "-m", "venv", "--clear", str(home)])
    _run("installing client libraries", [str(python), "-m", "pip", "install", "-q", "-r", str(_REQUIREMENTS)])
    stamp.write_text(wanted)
    return python


@contextlib.contextmanager
def _no_service_starts() -> Iterator[None]:
    """Debian asks this file before a package starts its service; 101 means no."""
    if _POLICY.exists():
        yield
        return
    _POLICY.write_text("#!/bin/sh\nexit 101\n")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink()


@functools.cache
def debian_program(program: str, package: str) -> Path:
    """A program of a Debian package, installed first when it is missing and we are allowed to."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin"
    if found := shutil.which(program, path=path):
        return Path(found)
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise Unavailable(f"{program} is missing; it comes with the Debian package {package} (needs root)")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    with _no_service_starts():
        _run("apt-get update", ["apt-get", "update", "-qq"], quiet)
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package]
        _run(f"apt-get install {package}", install, quiet)
    if shutil.which("systemctl"):
        subprocess.run(["systemctl", "disable", package], capture_output=True, check=False, timeout=60)
    if found := shutil.which(program, path=path):
        return Path(found)
    raise Unavailable(f"the Debian package {package} has no program {program}")


@functools.cache
def maven_jars(group: str, artifact: str, version: str) -> Path:
    """A directory with the jars of an artifact and of everything it needs at run time."""
    for program in ("java", "mvn"):
        if not shutil.which(program):
            raise Unavailable(f"{program} is missing")
    home = STATE / f"{artifact}-{version}"
    done = home / "complete"
    if not done.exists():
        home.mkdir(parents=True, exist_ok=True)
        pom = home / "pom.xml"
        pom.write_text(
            "<project><modelVersion>4.0.0</modelVersion><groupId>local</groupId><artifactId>run</artifactId>"
            f"<version>1</version><dependencies><dependency><groupId>{group}</groupId>"
            f"<artifactId>{artifact}</artifactId><version>{version}</version></dependency></dependencies></project>"
        )
        copy = ["mvn", "-B", "-q", "-f", str(pom), "dependency:copy-dependencies", "-DincludeScope=runtime"]
        _run(f"fetching the jars of {artifact}", [*copy, f"-DoutputDirectory={home / 'jars'}"])
        done.touch()
    return home / "jars"


def reason_of(attempt: Callable[[], object]) -> str | None:
    """Why an attempt to make a peer available failed, or None when it did not."""
    try:
        attempt()
    except Unavailable as reason:
        return str(reason)
    return None


def version_line(command: list[str | Path]) -> str:
    """The first line a program prints about its version, or "unknown"."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        lines = (done.stdout or done.stderr).strip().splitlines()
        return lines[0] if lines else "unknown"
    return "unknown"
