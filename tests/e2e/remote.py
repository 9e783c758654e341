"""Runs against a backend in a process of its own: started, stopped, killed at a chosen request, and looked into afterwards."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.source_tree import ROOT

REHEARSAL = ROOT / "tests" / "fixtures" / "rehearsal"
SECRETS = {"REHEARSAL_TOKEN": "tok-4711-not-for-any-file", "REHEARSAL_KEY": "sk-0815-not-for-any-file"}

MAIN = "import sys; sys.argv = ['nat-finetune', *sys.argv[1:]]; from nat_finetune.cli.main import main; sys.exit(main())"
KILL = """
import os, re, signal, sys
import httpx
when, what, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
calls = 0

def counted(name):
    global calls
    calls += bool(re.search(what, name))
    return calls == count and re.search(what, name)

def die():
    os.kill(os.getpid(), signal.SIGKILL)

if when in ("before-request", "after-answer"):
    send = httpx.AsyncClient.send
    async def sent(self, request, **given):
        hit = counted(f"{request.method} {request.url.path}")
        if hit and when == "before-request":
            die()
        answer = await send(self, request, **given)
        if hit:
            die()
        return answer
    httpx.AsyncClient.send = sent
else:
    from nat_finetune.runstore import RunStore
    write = RunStore.write_text
    def written(self, name, text):
        hit = counted(name)
        if hit and when == "before-file":
            die()
        write(self, name, text)
        if hit:
            die()
    RunStore.write_text = written
sys.argv = ["nat-finetune", *sys.argv[4:]]
from nat_finetune.cli.main import main
sys.exit(main())
"""


@dataclass(frozen=True)
class Kill:
    """kill -9 at the `count`-th request or file of the run folder that matches."""

    when: str
    """before-request, after-answer, before-file, after-file"""
    what: str
    count: int = 1


@dataclass
class Site:
    """A backend's server with its state, and a folder for runs."""

    folder: Path
    url: str
    asked: dict[str, str] = field(default_factory=dict)

    @property
    def state(self) -> dict:
        return json.loads((self.folder / "server" / "state.json").read_text())

    @property
    def jobs(self) -> list[dict]:
        return self.state["jobs"] if (self.folder / "server" / "state.json").exists() else []

    @property
    def run(self) -> Path:
        (run,) = (self.folder / "runs").iterdir()
        return run

    @property
    def report(self) -> dict:
        return json.loads((self.run / "report.json").read_text())

    def set(self, name: str) -> None:
        (self.folder / "server" / name).touch()

    def unset(self, name: str) -> None:
        (self.folder / "server" / name).unlink()

    def environment(self, host: str | None = None) -> dict[str, str]:
        paths = os.pathsep.join([str(self.folder / "installed"), str(REHEARSAL)])
        return os.environ | {"PYTHONPATH": paths, "REHEARSAL_HOST": host or self.url, "NO_PROXY": "127.0.0.1"} | SECRETS

    def cli(self, *arguments: str, kill: Kill | None = None, host: str | None = None, timeout: float = 120):
        """`nat-finetune ...` in a process of its own; what it says is kept for the scan for secrets."""
        script = [MAIN] if kill is None else [KILL, kill.when, kill.what, str(kill.count)]
        done = subprocess.run(
            [sys.executable, "-c", *script, *arguments],
            env=self.environment(host), capture_output=True, text=True, timeout=timeout, check=False, cwd=self.folder,
        )  # fmt: skip
        with (self.folder / "console.txt").open("a") as file:
            file.write(done.stdout + done.stderr)
        return done

    def start(self, *options: str, kill: Kill | None = None, host: str | None = None):
        arguments = ["run", str(REHEARSAL / "rehearsal.yml"), "--output-dir", str(self.folder / "runs")]
        for option in options:
            arguments += ["-o", option]
        return self.cli(*arguments, kill=kill, host=host)

    def leaks(self) -> list[str]:
        """Files of the runs and the console's text that hold a secret."""
        files = [*(self.folder / "runs").rglob("*"), self.folder / "console.txt"]
        found = [path for path in files if path.is_file() and any(s.encode() in path.read_bytes() for s in SECRETS.values())]
        return [str(path) for path in found]


def install(folder: Path) -> None:
    """Make the plugin known as pip does, without copying it."""
    about = folder / "installed" / "rehearsal-0.1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: rehearsal\nVersion: 0.1\n")
    (about / "entry_points.txt").write_text("[nat_finetune.components]\nrehearsal = rehearsal_plugin\n")


@contextmanager
def rehearsal_site(folder: Path) -> Iterator[Site]:
    """The rehearsal server in a process of its own."""
    install(folder)
    (folder / "server").mkdir()
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    server = subprocess.Popen([sys.executable, str(REHEARSAL / "rehearsal_server.py"), str(folder / "server"), str(port)])
    try:
        wait_for(port)
        yield Site(folder, f"http://127.0.0.1:{port}")
    finally:
        server.send_signal(signal.SIGKILL)
        server.wait(10)


def wait_for(port: int) -> None:
    for _ in range(200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError(f"nobody listens on {port}")
