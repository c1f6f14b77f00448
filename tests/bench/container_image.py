"""Builds the image of `docs/Dockerfile`, runs it, talks to it, kills it, and says what each step found.

No registry needs to be reached: the base is made here by debootstrap, as root, unless `--base` names one.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.program import read_options, say
from tests.docs.pages import ROOT
from tests.support.docker_daemons import docker_daemon

BASE, IMAGE, VOLUME = "loopline-base:1", "loopline:1", "talk"
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "sdk", "docs/Dockerfile")
PACKAGES = "ca-certificates,python3,python3-pip,python3-venv"
OF_THIS_MACHINE = ("etc/ssl/certs/ca-certificates.crt", "etc/pip.conf")
"""What says here whom to trust, and where packages come from."""
BUNDLE = "from loopline import Bundle\nbundle = Bundle(id='shop', instructions='You help.')\n"
ASK = """
import json, sys, urllib.request
key, method, path, body = sys.argv[1:]
headers = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
request = urllib.request.Request(
    "http://127.0.0.1:8000" + path, method=method, data=body.encode() or None, headers=headers
)
print(urllib.request.urlopen(request, timeout=60).read().decode())
"""
HERE = "/conversations/default/default/c1"
Json = dict[str, object]


def make_root(root: Path) -> None:
    """Make the folder of a base of Debian's packages: with the name `python`, and a pip that may install."""
    if not root.exists():
        bootstrap = ("debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", root)
        subprocess.run(bootstrap, check=True, capture_output=True)
    for name in OF_THIS_MACHINE:
        if Path("/", name).exists():
            shutil.copyfile(Path("/", name), root / name)
    for path in root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
        path.unlink()
    if not (root / "usr/bin/python").exists():
        (root / "usr/bin/python").symlink_to("python3")


@dataclass
class Image:
    host: str
    folder: Path
    problems: list[str] = field(default_factory=list[str])

    def docker(self, *words: str, stdin: bytes = b"") -> str:
        """Return what a command of docker prints; a failure is a `CalledProcessError`."""
        command = ["docker", "--host", self.host, *words]
        ran = subprocess.run(command, input=stdin, capture_output=True, check=False)
        if ran.returncode:
            sys.stderr.write(ran.stdout.decode()[-2_000:] + ran.stderr.decode()[-2_000:])
            ran.check_returncode()
        return ran.stdout.decode().strip()

    def check(self, what: str, *, holds: bool, seen: object = "") -> None:
        say(f"{'ok  ' if holds else 'FAIL'}  {what}  {seen}")
        if not holds:
            self.problems.append(what)

    def timed(self, what: str, act: Callable[[], str]) -> str:
        began = time.perf_counter()
        printed = act()
        self.check(what, holds=True, seen=f"{time.perf_counter() - began:.1f} s")
        return printed

    def make_base(self) -> str:
        root, archive = self.folder / "root", self.folder / "root.tar"
        make_root(root)
        subprocess.run(["tar", "-C", root, "-cf", archive, "."], check=True)
        return self.docker("import", str(archive), BASE)

    def build(self, base: str) -> str:
        packed = subprocess.run(
            ["tar", "-C", ROOT, "-c", *SOURCES], capture_output=True, check=True
        )
        return self.docker(
            *("build", "--network", "host", "--build-arg", f"BASE={base}"),
            *("--file", "docs/Dockerfile", "--tag", IMAGE, "-"),
            stdin=packed.stdout,
        )

    def ask(self, container: str, key: str, method: str, path: str, body: str = "") -> Json:
        """Return the answer of the server, asked from within: this daemon has no network."""
        printed = self.docker("exec", container, "python", "-c", ASK, key, method, path, body)
        answer: Json = json.loads(printed)
        return answer

    def wait_until_healthy(self, container: str) -> str:
        """Return the health of a container, once it is healthy or a minute has passed."""
        for _ in range(120):
            health = self.docker("inspect", "--format", "{{.State.Health.Status}}", container)
            if health == "healthy":
                break
            time.sleep(0.5)
        return self.docker("inspect", "--format", "{{.State.Health.Status}}", container)


def use(image: Image) -> None:
    """Make a key, serve a bundle, talk, kill the container, start it again, and stop it."""
    bundle = image.folder / "bundle"
    bundle.mkdir()
    (bundle / "__init__.py").write_text(BUNDLE, "utf-8")
    volume = ("--network", "none", "--volume", f"{VOLUME}:/data")
    key = image.docker(
        *("run", "--rm", *volume, "--entrypoint", "loopline", IMAGE),
        *("key", "/data/keys.json", "--user", "ann"),
    )
    container = image.docker(
        *("run", "--detach", *volume, "--volume", f"{bundle}:/bundle:ro", IMAGE)
    )
    health = image.timed("its check of health", lambda: image.wait_until_healthy(container))
    image.check("it is healthy", holds=health == "healthy", seen=health)
    user = image.docker("exec", container, "id", "-u")
    image.check("it is not root", holds=user == "10001", seen=user)
    touched = subprocess.run(
        ["docker", "--host", image.host, "exec", container, "touch", "/x"],
        capture_output=True,
        check=False,
    )
    image.check("it writes only to its volume", holds=touched.returncode != 0)
    said = image.ask(container, key, "POST", f"{HERE}/messages", '{"text": "hello"}')
    image.check("a message is answered", holds=said["exit_reason"] == "complete")
    before = image.ask(container, key, "GET", f"{HERE}/blocks")
    image.docker("kill", container)
    image.docker("start", container)
    image.check(
        "it is healthy after a kill", holds=image.wait_until_healthy(container) == "healthy"
    )
    after = image.ask(container, key, "GET", f"{HERE}/blocks")
    image.check("the volume has every block", holds=before == after)
    more = image.ask(container, key, "POST", f"{HERE}/messages", '{"text": "more"}')
    image.check("the conversation goes on", holds=more["turn_id"] == "turn_2")
    image.timed("it stops when it is told to", lambda: image.docker("stop", container))
    code = image.docker("inspect", "--format", "{{.State.ExitCode}}", container)
    image.check("it has drained", holds=code == "0", seen=f"exit code {code}")


def main() -> None:
    """Print what each step found; fail if something does not hold."""
    base: str = read_options(__doc__, base="").base
    with docker_daemon() as host, tempfile.TemporaryDirectory(prefix="li") as folder:
        image = Image(host, Path(folder))
        if not base:
            base = BASE
            image.timed("a base is made", image.make_base)
        image.timed("the image is built", lambda: image.build(base))
        size = int(image.docker("inspect", "--format", "{{.Size}}", IMAGE))
        image.check("it has a size", holds=size > 0, seen=f"{size / 1e6:,.0f} MB")
        use(image)
    sys.exit(1 if image.problems else 0)


if __name__ == "__main__":
    main()
