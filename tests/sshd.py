"""An ssh server of a test's own, on this machine's loopback, with keys made for it alone."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

SEPARATION = Path("/run/sshd")
"""Where sshd that runs as root wants an empty directory, which the system's start-up makes. It is
left there: another process of a distributed run may have a server that needs it."""

SERVER = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
PidFile none
AuthorizedKeysFile {folder}/user.pub
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
"""

CLIENT = """
Host far
  Port {port}
Host gone
  Port {closed}
Host *
  HostName 127.0.0.1
  User {user}
  IdentityFile {folder}/user
  IdentitiesOnly yes
  IdentityAgent none
  BatchMode yes
  UserKnownHostsFile {folder}/known
  GlobalKnownHostsFile /dev/null
  LogLevel ERROR
"""

START_S = 10.0


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Path]:
    """Serve while the block runs; skips the test where that cannot be.

    Args:
        folder: for keys and files.

    Yields:
        A configuration for ``ssh -F``: host ``far`` is this machine, at ``gone`` nobody listens.
    """
    server = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if server is None or shutil.which("ssh") is None or shutil.which("ssh-keygen") is None:
        pytest.skip("no sshd, ssh or ssh-keygen here (Debian: openssh-server, openssh-client)")
    port, closed = _free_ports()
    for name in ("host", "user"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(command, check=True)
    public = (folder / "host.pub").read_text(encoding="ascii")
    (folder / "known").write_text(f"[127.0.0.1]:{port} {public}", encoding="ascii")
    values = {"port": port, "closed": closed, "folder": folder, "user": getpass.getuser()}
    config = folder / "client"
    config.write_text(CLIENT.format(**values), encoding="utf-8")
    (folder / "server").write_text(SERVER.format(**values), encoding="utf-8")
    if os.geteuid() == 0:
        SEPARATION.mkdir(mode=0o755, exist_ok=True)
    with (folder / "said").open("w+b") as said:
        command = [server, "-D", "-e", "-f", str(folder / "server")]
        process = subprocess.Popen(command, stdout=said, stderr=said)
        try:
            trouble = _trouble(config, process)
            if trouble:
                words = (folder / "said").read_text(encoding="utf-8", errors="replace")
                pytest.skip(f"sshd cannot serve here: {trouble}; it said {words[-300:]!r}")
            yield config
        finally:
            process.terminate()
            process.wait()


def _free_ports() -> tuple[int, int]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as b:
        return one.getsockname()[1], b.getsockname()[1]


def _trouble(config: Path, process: subprocess.Popen[bytes]) -> str:
    """Why nobody can log in, empty if somebody can."""
    command = ["ssh", "-F", str(config), "far", "true"]
    said = ""
    end = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < end:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return ""
        said = done.stderr
        time.sleep(0.1)
    return said.strip() or f"it ended with {process.poll()}"
