"""Real Flower processes for the tests.

Each fixture has its own home and ports, and ends what it started.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from flwr_flynn.app.data.datasets import load_dataset
from flwr_flynn.app.data.own_file import own_share
from flwr_flynn.app.node_config import NodeConfig
from tests.docs.pages import blocks

psutil = pytest.importorskip("psutil")
pytest.importorskip("ray")

ROOT = Path(__file__).parents[2]
DIGITS = load_dataset("digits")
# Features and classes of the digits.
PUBLIC: dict[str, Any] = {"n_features": 64, "classes": ",".join(map(str, range(10)))}

_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_PORTS = iter(
    range(
        20000 + 2500 * (_WORKER % 4) + os.getpid() % 1000, 22500 + 2500 * (_WORKER % 4)
    )
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give real processes the time that they take on a busy machine."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(2400))


def free_ports(n: int) -> list[int]:
    """Ports that nobody listens on right now.

    They are from a range of this worker below those that the system hands out.
    """
    ports: list[int] = []
    for port in _PORTS:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            ports.append(port)
        if len(ports) == n:
            return ports
    raise OSError("no free ports left")


def training_rows(
    *paths: Path, features: Sequence[str] = (), **node: Any
) -> tuple[Any, Any]:
    """Features and labels of what parties with these files do not hold out."""
    shares = [
        own_share(NodeConfig.parse({"data-path": str(path), **node}), features)
        for path in paths
    ]
    return np.concatenate([share.X for share in shares]), np.concatenate(
        [share.y for share in shares]
    )


def config_text(settings: Mapping[str, Any]) -> str:
    """Settings as `--run-config` and `--node-config` take them.

    Underscores stand for hyphens.
    """
    return " ".join(
        f"{key.replace('_', '-')}={json.dumps(value)}"
        for key, value in settings.items()
    )


def replaced(text: str, places: Mapping[str, Any]) -> str:
    """A command of a page with real ports and folders in the place of the page's."""
    for place, real in places.items():
        text = text.replace(place, str(real))
    return text


def command_of(line: str, places: Mapping[str, Any]) -> list[str]:
    """A command of a page, with real ports and folders, and this checkout as its app."""
    return [
        str(ROOT) if word == "." else word
        for word in shlex.split(replaced(line, places))
    ]


def still_alive(processes: list[Any], seconds: float) -> list[Any]:
    """Those of some processes that have not ended after so long.

    Zombies have: not every machine clears them away.
    """
    end = time.monotonic() + seconds
    while True:
        alive = []
        for process in processes:
            with suppress(psutil.Error):
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    alive.append(process)
        if not alive or time.monotonic() > end:
            return alive
        time.sleep(0.1)


@dataclass
class Run:
    """Output of a finished `flwr run --stream`."""

    output: str

    def row(self, name: str) -> str:
        """The text beside `name` in the table that the app prints.

        Below the bytes per party are names of phases, which some facts have as well.
        """
        rows = [
            line for line in self.output.splitlines() if line.strip().startswith(name)
        ]
        assert rows, f"no row {name!r} in:\n{self.output[-6000:]}"
        indents = [len(line) - len(line.lstrip()) for line in rows]
        last = max(i for i, indent in enumerate(indents) if indent == min(indents))
        return rows[last].strip().removeprefix(name).strip()


@dataclass
class Flower:
    """Flower's command line with a home, ports and working directory of its own."""

    folder: Path
    installed: ClassVar[Path | None] = None
    superlink: str = "local"
    logs: list[Path] = field(default_factory=list)
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

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
        # Otherwise each process would compile the whole app for itself.
        self.env.pop("PYTHONDONTWRITEBYTECODE", None)
        self.install(self.folder / "home")

    def install(self, home: Path) -> None:
        """Put the app of this checkout, where it is unpacked already, into a home.

        Flower takes it as installed there.

        Its kernels are compiled once in a session, not once in each home, which takes
        15 s of each process.
        """
        (home / "apps").mkdir(parents=True, exist_ok=True)
        if self.installed is not None:
            with suppress(FileExistsError):
                (home / "apps" / self.installed.name).symlink_to(self.installed)

    def _done(
        self, command: Sequence[str], timeout: float, stderr: int
    ) -> subprocess.CompletedProcess[str]:
        streams = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": stderr,
        }
        return subprocess.run(
            command,
            cwd=self.cwd,
            env=self.env,
            timeout=timeout,
            text=True,
            check=False,
            **streams,
        )

    def call(self, *command: str, timeout: float = 900) -> str:
        """Run a command to its end and return what it printed, errors included."""
        return self._done(command, timeout, subprocess.STDOUT).stdout

    def shell(self, script: str) -> str:
        """Run shell commands, all of which must succeed."""
        done = self._done(
            ("bash", "-euo", "pipefail", "-c", script), 900, subprocess.PIPE
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def run(
        self,
        app: Path = ROOT,
        *,
        nodes: int | None = None,
        ends: str = "finished:completed",
        **settings: Any,
    ) -> Run:
        """`flwr run APP --stream`, which ends with this status.

        Underscores in the `settings` of the run stand for hyphens.
        """
        command = ["flwr", "run", str(app), self.superlink, "--stream"]
        if nodes is not None:
            # One actor of Ray's, as each imports everything; with the pages' commands
            # there is one for each core.
            resources = "client-resources-num-cpus=1 init-args-num-cpus=1"
            command += ["--federation-config", f"num-supernodes={nodes} {resources}"]
        if settings:
            command += ["--run-config", config_text(settings)]
        return self.finished(self.call(*command), ends)

    def ended(self) -> dict[str, Any]:
        """Status and details of the only run, from Flower, as soon as it has ended."""
        run: dict[str, Any] = {"status": "unknown"}
        # The state follows the last log line by a moment, or, of a process that was
        # cut off, by the minute that Flower waits for its heartbeats.
        end = time.monotonic() + 90
        while time.monotonic() < end:
            listed = self.call("flwr", "list", self.superlink, "--format", "json")
            with suppress(ValueError, KeyError, IndexError):
                run = json.loads(listed[listed.index("{") :])["runs"][0]
            if run["status"].startswith("finished"):
                break
            time.sleep(0.2)
        return run

    def finished(self, output: str, ends: str = "finished:completed") -> Run:
        """A run that printed this, whose status must be as given."""
        assert self.ended()["status"] == ends, output[-6000:]
        return Run(output)

    def background(
        self, log: Path, *command: str, **env: str
    ) -> subprocess.Popen[bytes]:
        """Start a command and go on; `stop` ends it. Its output goes to `log`."""
        with log.open("wb") as out:
            streams: dict[str, Any] = {
                "stdin": subprocess.DEVNULL,
                "stdout": out,
                "stderr": subprocess.STDOUT,
            }
            process = subprocess.Popen(
                command, cwd=self.cwd, env=self.env | env, **streams
            )
        self.started.append(process)
        return process

    def start(self, name: str, *command: str) -> None:
        """Start a process that stays.

        It has a Flower home of its own and its output in a file.
        """
        self.logs.append(self.folder / f"{name}.log")
        self.install(self.folder / "home" / name)
        self.background(
            self.logs[-1], *command, FLWR_HOME=str(self.folder / "home" / name)
        )

    def processes(self, folder: Path) -> list[Any]:
        """Processes, and all that they started, whose Flower home lies in `folder`."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                home = process.environ().get("FLWR_HOME", "")
                if (
                    home
                    and Path(home).is_relative_to(folder)
                    and process.pid != os.getpid()
                ):
                    found.append(process)
        return found

    def stop(self) -> None:
        """End every process that was started with this home.

        These are SuperLink, SuperNodes and those of Ray.
        """
        mine = self.processes(self.folder)
        for process in mine:
            with suppress(psutil.Error):
                process.terminate()
        for process in still_alive(mine, 5):
            with suppress(psutil.Error):
                process.kill()
        for ended in self.started:
            ended.wait(10)

    def wait_for_health(
        self, port: int, seconds: float = 60, ca: Path | None = None
    ) -> None:
        """Wait until a SuperLink answers.

        One with TLS has a certificate that `ca` issued.
        """
        end = time.monotonic() + seconds
        scheme = "http"
        context = None
        if ca is not None:
            scheme = "https"
            context = ssl.create_default_context(cafile=ca)
        url = f"{scheme}://127.0.0.1:{port}/health"
        while time.monotonic() < end:
            with suppress(urllib.error.URLError, OSError):
                if (
                    urllib.request.urlopen(url, timeout=1, context=context).status
                    == 200
                ):
                    return
            time.sleep(0.3)
        raise TimeoutError("\n".join(log.read_text() for log in self.logs))


@dataclass
class Deployment(Flower):
    """A SuperLink and SuperNodes as processes of their own.

    Each can be ended and begun again.
    """

    superlink: str = "loopback"

    def __post_init__(self) -> None:
        super().__post_init__()
        (self.link,) = free_ports(1)
        (Path(self.env["FLWR_HOME"]) / "config.toml").write_text(
            f'[superlink.{self.superlink}]\naddress = "127.0.0.1:{self.link}"\n'
            "insecure = true\n"
        )

    def places(self) -> dict[str, Any]:
        """Real ports for those of a page with three parties."""
        return dict(
            zip(
                ("29000", "29101", "29102", "29103"),
                (self.link, *free_ports(3)),
                strict=True,
            )
        )

    def start_link(self) -> None:
        """Start the SuperLink.

        Its state is in a file, so that it is there after a second start.
        """
        options = (
            "--insecure",
            "--host",
            "127.0.0.1",
            "--port",
            str(self.link),
            "--isolation",
            "subprocess",
        )
        database = (
            "--database",
            str(self.folder / "state.db"),
            "--disable-runtime-dependency-installation",
        )
        self.start("superlink", "flower-superlink", *options, *database)
        self.wait_for_health(self.link)

    def start_party(
        self,
        party: str,
        *,
        data: tuple[Any, Any] | None = None,
        name: str = "",
        **node: Any,
    ) -> None:
        """Start a SuperNode with `node` as its settings (underscores for hyphens).

        `data` are samples and labels: they go to a file, and `data-path` and `party-id`
        are set. `name` is that of the process and its log file, where one party has
        several.
        """
        if data is not None:
            np.savez(self.folder / f"{party}.npz", X=data[0], y=data[1])
            node = {
                "data_path": str(self.folder / f"{party}.npz"),
                "party_id": party,
                **node,
            }
        (port,) = free_ports(1)
        options = (
            "--insecure",
            "--superlink",
            f"127.0.0.1:{self.link}",
            "--port",
            str(port),
        )
        isolation = ("--isolation", "subprocess")
        self.start(
            name or party,
            "flower-supernode",
            *options,
            *isolation,
            "--node-config",
            config_text(node),
        )

    def send(self, name: str, number: int) -> None:
        """Send a signal to a SuperLink or a party, and to all that it started."""
        for process in self.processes(self.folder / "home" / name):
            with suppress(psutil.Error):
                process.send_signal(number)

    def end(self, name: str, number: int = signal.SIGKILL) -> None:
        """End a SuperLink or a party, and wait until it is gone."""
        ended = self.processes(self.folder / "home" / name)
        self.send(name, number)
        still_alive(ended, 20)

    def stop(self) -> None:
        for process in self.processes(self.folder):
            with suppress(psutil.Error):
                # what sleeps does not hear that it should end, and a SuperLink takes
                # its time
                process.kill()
        super().stop()


@pytest.fixture(scope="session", autouse=True)
def installed_app(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The app of this checkout, bundled and unpacked once under Flower's name.

    All processes of the session use it.
    """
    build = Flower(tmp_path_factory.mktemp("app").resolve())
    build.call("flwr", "build", "--app", str(ROOT))
    (bundle,) = build.cwd.glob("*.fab")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    names = (
        project["tool"]["flwr"]["app"]["publisher"],
        project["project"]["name"],
        project["project"]["version"],
    )
    app = ".".join((*names, hashlib.sha256(bundle.read_bytes()).hexdigest()[:8]))
    with zipfile.ZipFile(bundle) as packed:
        packed.extractall(build.folder / app)
        for file in (name for name in packed.namelist() if name.endswith(".py")):
            shutil.copystat(ROOT / file, build.folder / app / file)
    # What Numba has compiled in this checkout; it goes by the times of the files.
    others = shutil.ignore_patterns("*.py", "*.pyc*", "*.tmp.*")
    shutil.copytree(
        ROOT / "flwr_flynn",
        build.folder / app / "flwr_flynn",
        ignore=others,
        dirs_exist_ok=True,
    )
    shared = tmp_path_factory.getbasetemp().resolve()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    with suppress(OSError):  # another process of the session was first
        (build.folder / app).rename(shared / app)
    Flower.installed = shared / app


@pytest.fixture(scope="module")
def deployment(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[..., Deployment]]:
    """Start a SuperLink and parties, which end with the module.

    The parties are a mapping from names to the keywords of `start_party`.

    What is given by `env` is in the environment of all processes.
    """
    made: list[Deployment] = []

    def start(parties: Mapping[str, Mapping[str, Any]], **env: str) -> Deployment:
        made.append(Deployment(tmp_path_factory.mktemp("deployment").resolve()))
        made[-1].env.update(env)
        made[-1].start_link()
        for party, settings in parties.items():
            made[-1].start_party(party, **settings)
        return made[-1]

    try:
        yield start
    finally:
        for each in made:
            each.stop()


@pytest.fixture(scope="module")
def flower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flower]:
    """One local SuperLink for the runs of a module; `flwr run` starts it."""
    made = Flower(tmp_path_factory.mktemp("flower").resolve())
    try:
        yield made
    finally:
        made.stop()
        shutil.rmtree(made.folder / "home", ignore_errors=True)


@pytest.fixture(scope="module")
def theirs(flower: Flower) -> Flower:
    """A Flower whose processes find flwr_flynn as an installed package, not as the app."""
    flower.env["PYTHONPATH"] = str(ROOT)
    return flower


TASK = """
from sklearn.datasets import load_digits


def load_data(context):
    X, y = load_digits(return_X_y=True)
    first = int(context.node_config["partition-id"])
    n_parties = int(context.node_config["num-partitions"])
    X, y = X[first::n_parties], y[first::n_parties]
    return X[5:], y[5:], X[:5], y[:5]
"""


Change = Callable[[str], str]
# Texts by which the blocks of an app's server and client are found on a page.
MESSAGE_API = ("message.FlyNNStrategy(", "@app.train(")
OLDER_API = ("LegacyContext(", "client_fn=")


def write_app(
    folder: Path,
    page: str,
    server: Change = str,
    client: Change = str,
    marks: Any = MESSAGE_API,
) -> Path:
    """The server and the client of a page of the documentation as an app, changed.

    They are found by the marks of their API.
    """
    texts = [
        next(block for block in blocks(page, "python") if text in block)
        for text in marks
    ]
    app = folder / "my-app"
    (app / "my_app").mkdir(parents=True)
    project = (ROOT / "tests" / "own_phase_app" / "pyproject.toml").read_text()
    (app / "pyproject.toml").write_text(
        replaced(project, {"own_phase_app": "my_app", "own-phase-app": "my-app"})
    )
    (app / "my_app" / "__init__.py").touch()
    (app / "my_app" / "task.py").write_text(TASK)
    (app / "my_app" / "server_app.py").write_text(server(texts[0]))
    (app / "my_app" / "client_app.py").write_text(client(texts[1]))
    return app
