"""Real Flower processes for the tests: each fixture has its own home and ports, and ends what it started."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

psutil = pytest.importorskip("psutil")
pytest.importorskip("ray")

ROOT = Path(__file__).parents[2]


def free_ports(n: int) -> list[int]:
    """Ports that nobody listens on right now."""
    with_sockets = [socket.socket() for _ in range(n)]
    for s in with_sockets:
        s.bind(("127.0.0.1", 0))
    ports: list[int] = [s.getsockname()[1] for s in with_sockets]
    for s in with_sockets:
        s.close()
    return ports


@dataclass
class Run:
    """A finished `flwr run --stream`: what it printed, and what `flwr list` says about it."""

    output: str
    status: str

    def row(self, name: str) -> str:
        """The text beside `name` in the table that the app prints."""
        rows = [line for line in self.output.splitlines() if line.strip().startswith(name)]
        assert rows, f"no row {name!r} in:\n{self.output[-6000:]}"
        return rows[-1].strip().removeprefix(name).strip()


@dataclass
class Flower:
    """Flower's command line with a home, ports and working directory of its own."""

    folder: Path
    superlink: str = "local"
    logs: list[Path] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.cwd = self.folder / "neutral"
        self.cwd.mkdir()
        http, control = free_ports(2)
        self.env = os.environ | {
            "FLWR_HOME": str(self.folder / "home"),
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(http),
            "FLWR_LOCAL_CONTROL_API_PORT": str(control),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "COLUMNS": "250",
            "NO_COLOR": "1",
        }

    def call(self, *command: str, timeout: float = 300) -> str:
        """Run a command to its end and return what it printed, errors included."""
        done = subprocess.run(
            command,
            cwd=self.cwd,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            text=True,
            check=False,
        )
        return done.stdout

    def shell(self, script: str) -> str:
        """Run shell commands, all of which must succeed."""
        command = ("bash", "-euo", "pipefail", "-c", script)
        done = subprocess.run(
            command, cwd=self.cwd, env=self.env, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def run(self, app: Path = ROOT, *, nodes: int | None = None, **settings: Any) -> Run:
        """`flwr run APP --stream` with run-config `settings` (underscores for hyphens)."""
        command = ["flwr", "run", str(app), self.superlink, "--stream"]
        if nodes is not None:
            command += ["--federation-config", f"num-supernodes={nodes} client-resources-num-cpus=1"]
        if settings:
            pairs = [f"{key.replace('_', '-')}={json.dumps(value)}" for key, value in settings.items()]
            command += ["--run-config", " ".join(pairs)]
        return self.finished(self.call(*command))

    def finished(self, output: str) -> Run:
        """A run's output with the status of the latest run."""
        status = "unknown"
        for _ in range(50):  # the state follows the last log line by a moment
            listed = self.call("flwr", "list", self.superlink, "--format", "json")
            with suppress(ValueError, KeyError, IndexError):
                status = json.loads(listed[listed.index("{") :])["runs"][0]["status"]
            if status.startswith("finished"):
                break
            time.sleep(0.2)
        return Run(output, status)

    def start(self, name: str, *command: str) -> None:
        """Start a process that stays, with a Flower home of its own and its output in a file."""
        log = self.folder / f"{name}.log"
        self.logs.append(log)
        with log.open("wb") as out:
            subprocess.Popen(
                command,
                cwd=self.cwd,
                env=self.env | {"FLWR_HOME": str(self.folder / "home" / name)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def stop(self) -> None:
        """End every process that was started with this home, SuperLink, SuperNodes and Ray's alike."""
        mine = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                home = process.environ().get("FLWR_HOME", "")
                if process.pid != os.getpid() and Path(home).is_relative_to(self.folder) and home:
                    mine.append(process)
        for process in mine:
            with suppress(psutil.Error):
                process.terminate()
        for process in psutil.wait_procs(mine, timeout=5)[1]:
            with suppress(psutil.Error):
                process.kill()

    def wait_for_health(self, port: int, seconds: float = 60, ca: Path | None = None) -> None:
        """Wait until a SuperLink answers; one with TLS by a certificate that `ca` issued."""
        end = time.monotonic() + seconds
        scheme, context = "http", None
        if ca is not None:
            scheme, context = "https", ssl.create_default_context(cafile=ca)
        url = f"{scheme}://127.0.0.1:{port}/health"
        while time.monotonic() < end:
            with suppress(urllib.error.URLError, OSError):
                if urllib.request.urlopen(url, timeout=1, context=context).status == 200:
                    return
            time.sleep(0.3)
        raise TimeoutError("\n".join(log.read_text() for log in self.logs))


@pytest.fixture(scope="module")
def flower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flower]:
    """One local SuperLink for the runs of a module; `flwr run` starts it."""
    made = Flower(tmp_path_factory.mktemp("flower").resolve())
    try:
        yield made
    finally:
        made.stop()
        shutil.rmtree(made.folder / "home", ignore_errors=True)


def readme_blocks(language: str) -> list[str]:
    """The code blocks of README.md in one language, in order."""
    blocks, current, inside = [], [], False
    for line in (ROOT / "README.md").read_text().splitlines():
        if inside and line == "```":
            blocks.append("\n".join(current) + "\n")
            current, inside = [], False
        elif inside:
            current.append(line)
        elif line == f"```{language}":
            inside = True
    return blocks
