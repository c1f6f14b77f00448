"""Programs that try to get out of a sandbox, each with what it would have if it did."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from loopline.models import JsonObject
from loopline.sandbox import (
    Execution,
    ExecutionLimits,
    ExecutionResult,
    Sandbox,
    ServedCall,
    Session,
    parse_contract,
    result_of,
)

SECRET = "the-secret-of-the-host"
LIMITS = ExecutionLimits(
    wall_seconds=1.5,
    cpu_seconds=1,
    memory_bytes=200_000_000,
    processes=24,
    file_bytes=1_000_000,
    total_bytes=2_000_000,
    disk_bytes=20_000_000,
    disk_files=500,
    output_bytes=200_000,
    calls=20,
    message_bytes=100_000,
)
PRELUDE = """
import ctypes, errno, os, socket, struct, sys
LIBRARY = ctypes.CDLL(None, use_errno=True)
PORT, HOST_FOLDER, HOST_PID = int(os.environ["CANARY_PORT"]), os.environ["CANARY_FOLDER"], int(os.environ["CANARY_PID"])

def call(number, *arguments):
    arguments = [a if not isinstance(a, int) else ctypes.c_long(a) for a in arguments]
    LIBRARY.syscall.restype = ctypes.c_long
    value = LIBRARY.syscall(ctypes.c_long(number), *arguments)
    if value == -1:
        raise OSError(ctypes.get_errno(), "call")
    return value

def attempt(step, is_escape=lambda value: True):
    try:
        value = step()
    except OSError as error:
        print("STOPPED", errno.errorcode.get(error.errno, error))
    except Exception as error:
        print("STOPPED", type(error).__name__)
    else:
        print("ESCAPED" if is_escape(value) else "STOPPED nothing there", str(value)[:80])

def read(path, size=100_000):
    with open(path, "rb") as file:
        return file.read(size)

def write(path, text="x"):
    with open(path, "w") as file:
        file.write(text)

def connect(family, address, kind=socket.SOCK_STREAM, protocol=0):
    made = socket.socket(family, kind, protocol)
    made.settimeout(1)
    made.connect(address)
    made.send(b"x")
"""

ATTEMPTS: Mapping[str, str] = {
    # The network.
    "tcp": 'attempt(lambda: connect(socket.AF_INET, ("127.0.0.1", PORT)))',
    "tcp6": 'attempt(lambda: connect(socket.AF_INET6, ("::1", PORT)))',
    "udp": 'attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", PORT)))',
    "abstract socket": 'attempt(lambda: connect(socket.AF_UNIX, b"\\0canary-%d" % PORT))',
    "socket of a path": 'attempt(lambda: connect(socket.AF_UNIX, HOST_FOLDER + "/canary.sock"))',
    "another connection to the supervisor": 'attempt(lambda: connect(socket.AF_UNIX, "/tmp/supervisor.sock"))',
    "icmp": "attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))",
    "ping": "attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 1))",
    "netlink": "attempt(lambda: socket.socket(16, socket.SOCK_RAW, 0))",
    "netlink audit": "attempt(lambda: socket.socket(16, socket.SOCK_RAW, 9))",
    "vsock": "attempt(lambda: socket.socket(40, socket.SOCK_STREAM))",
    "packets": "attempt(lambda: socket.socket(17, socket.SOCK_RAW, 3))",
    "crypto sockets": "attempt(lambda: socket.socket(38, socket.SOCK_SEQPACKET))",
    "bluetooth": "attempt(lambda: socket.socket(31, socket.SOCK_RAW, 1))",
    "pair of tcp sockets": "attempt(lambda: socket.socketpair(socket.AF_INET))",
    "a listening port": 'attempt(lambda: socket.create_server(("127.0.0.1", 0)))',
    "the shell's tcp": 'attempt(lambda: __import__("subprocess").check_output(["/bin/bash", "-c", f"echo x >/dev/tcp/127.0.0.1/{PORT}"]))',
    "a name lookup": 'attempt(lambda: socket.getaddrinfo("localhost.example", 80))',
    "a socket by io_uring": "attempt(lambda: call(425, 8, ctypes.create_string_buffer(120)))",
    # Other processes and the kernel's files.
    "environment of init": 'attempt(lambda: read("/proc/1/environ"), lambda value: b"secret" in value)',
    "memory of init": 'attempt(lambda: read("/proc/1/mem", 10))',
    "root of init": 'attempt(lambda: os.listdir("/proc/1/root/"), lambda value: "boot" in value or "root" in value)',
    "folder of init": 'attempt(lambda: os.listdir("/proc/1/cwd/"), lambda value: "canary.sock" in value)',
    "environments of all": 'attempt(lambda: [p for p in os.listdir("/proc") if p.isdigit() and b"the-secret" in read(f"/proc/{p}/environ")])',
    "processes of the host": 'attempt(lambda: os.path.exists(f"/proc/{HOST_PID}/cmdline") and read(f"/proc/{HOST_PID}/cmdline"), bool)',
    "core pattern": 'attempt(lambda: write("/proc/sys/kernel/core_pattern", "|/x"))',
    "sysrq": 'attempt(lambda: write("/proc/sysrq-trigger", "h"))',
    "kernel memory": 'attempt(lambda: read("/proc/kcore", 100))',
    "kernel addresses": 'attempt(lambda: int(read("/proc/kallsyms", 16), 16), bool)',
    "a lower score for the killer": 'attempt(lambda: write("/proc/self/oom_score_adj", "-1000"))',
    "the map of users": 'attempt(lambda: write("/proc/self/uid_map", "0 0 1"))',
    "names of interfaces": 'attempt(lambda: os.listdir("/sys/class/net"))',
    "routes of the host": 'attempt(lambda: read("/proc/net/route").count(b"\\n"), lambda value: value > 1)',
    "the kernel's log": "attempt(lambda: call(103, 3, ctypes.create_string_buffer(1000), 1000))",
    "ptrace of init": "attempt(lambda: call(101, 16, 1, 0, 0))",
    "ptrace of itself": "attempt(lambda: call(101, 0, 0, 0, 0))",
    "reading another's memory": "attempt(lambda: call(310, 1, 0, 0, 0, 0, 0))",
    "writing another's memory": "attempt(lambda: call(311, 1, 0, 0, 0, 0, 0))",
    "a signal to init": "attempt(lambda: os.kill(1, 9))",
    "a signal to the host": "attempt(lambda: os.kill(HOST_PID, 0))",
    "another's descriptor": "attempt(lambda: call(438, os.pidfd_open(1), 0, 0))",
    "another's priority": "attempt(lambda: os.setpriority(os.PRIO_PROCESS, 1, 19))",
    "comparing with another": "attempt(lambda: call(312, 1, os.getpid(), 0, 0, 0))",
    # Users and rights.
    "setuid": "attempt(lambda: os.setuid(0))",
    "setresuid": "attempt(lambda: os.setresuid(0, 0, 0))",
    "setgid": "attempt(lambda: os.setgid(0))",
    "setgroups": "attempt(lambda: os.setgroups([0]))",
    "a program with setuid": 'attempt(lambda: __import__("subprocess").check_output(["/usr/bin/su", "-c", "id -u"], stdin=-3), lambda value: value.strip() == b"0")',
    "making a program with setuid": 'attempt(lambda: (write("outputs/s"), os.chown("outputs/s", 0, 0)))',
    "capset": "attempt(lambda: call(126, struct.pack('II', 0x20080522, 0), struct.pack('6I', *[0xffffffff] * 6)))",
    "ambient rights": "attempt(lambda: call(157, 47, 2, 21, 0, 0))",
    "new privileges again": "attempt(lambda: call(157, 38, 0, 0, 0, 0))",
    "another filter": "attempt(lambda: call(317, 1, 8, 0))",
    "personality": "attempt(lambda: call(135, 0x40000))",
    # Namespaces and mounts.
    "unshare user": "attempt(lambda: call(272, 0x10000000))",
    "unshare net": "attempt(lambda: call(272, 0x40000000))",
    "unshare mount": "attempt(lambda: call(272, 0x00020000))",
    "clone user": "attempt(lambda: call(56, 0x10000000 | 17, 0, 0, 0, 0))",
    "clone net": "attempt(lambda: call(56, 0x40000000 | 17, 0, 0, 0, 0))",
    "clone3 user": "attempt(lambda: call(435, struct.pack('11Q', 0x10000000, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0), 88))",
    "setns": 'attempt(lambda: call(308, os.open("/proc/1/ns/net", 0), 0))',
    "mount": 'attempt(lambda: call(165, b"none", b"/tmp", b"tmpfs", 0, 0))',
    "bind mount": 'attempt(lambda: call(165, b"/", b"/tmp", 0, 4096, 0))',
    "remount": 'attempt(lambda: call(165, b"none", b"/usr", 0, 32 | 4096, 0))',
    "umount": 'attempt(lambda: call(166, b"/usr", 2))',
    "pivot_root": 'attempt(lambda: call(155, b".", b"."))',
    "chroot": 'attempt(lambda: os.chroot("/usr"))',
    "open_tree": 'attempt(lambda: call(428, -100, b"/", 1))',
    "fsopen": 'attempt(lambda: call(430, b"tmpfs", 0))',
    "mount_setattr": 'attempt(lambda: call(442, -100, b"/usr", 0, bytes(32), 32))',
    # The kernel.
    "keyctl": "attempt(lambda: call(250, 0, -3, 0))",
    "add_key": 'attempt(lambda: call(248, b"user", b"x", b"y", 1, -3))',
    "request_key": 'attempt(lambda: call(249, b"user", b"x", 0, -3))',
    "io_uring": "attempt(lambda: call(425, 1, bytes(120)))",
    "bpf": "attempt(lambda: call(321, 0, bytes(128), 128))",
    "perf": "attempt(lambda: call(298, bytes(128), 0, -1, -1, 0))",
    "userfaultfd": "attempt(lambda: call(323, 1))",
    "kexec": "attempt(lambda: call(246, 0, 0, 0, 0))",
    "a module": 'attempt(lambda: call(175, bytes(10), 10, b""))',
    "a module of a file": 'attempt(lambda: call(313, 0, b"", 0))',
    "iopl": "attempt(lambda: call(172, 3))",
    "ioperm": "attempt(lambda: call(173, 0, 1, 1))",
    "swap": 'attempt(lambda: call(167, b"x", 0))',
    "accounting": "attempt(lambda: call(163, 0))",
    "reboot": "attempt(lambda: call(169, 0xfee1dead, 672274793, 0, 0))",
    "the clock": "attempt(lambda: call(227, 0, bytes(16)))",
    "the host's name": 'attempt(lambda: socket.sethostname("x"))',
    "a file by its handle": "attempt(lambda: call(304, -100, bytes(140), 0))",
    "fanotify": "attempt(lambda: call(300, 0, 0))",
    "a memory file to execute": 'attempt(lambda: call(319, b"x", 0))',
    "a device": 'attempt(lambda: os.mknod("outputs/d", 0o600 | 0o20000, os.makedev(1, 1)))',
    "devices of the host": 'attempt(lambda: [read(f"/dev/{name}", 10) for name in ("mem", "kmsg", "vda", "sda", "kvm")])',
    "typing into a terminal": 'attempt(lambda: __import__("fcntl").ioctl(0, 0x5412, b"x"))',
    "typing into a terminal by a wide number": """
try:
    call(16, 0, 0x1_0000_5412, b"x")
except OSError as error:
    print("STOPPED" if error.errno == errno.EPERM else "ESCAPED", error)
""",
    # Files.
    "the secret of the host": 'attempt(lambda: read(HOST_FOLDER + "/secret"))',
    "passwords": 'attempt(lambda: read("/etc/shadow"))',
    "the home of root": 'attempt(lambda: os.listdir("/ro" + "ot"))',
    "docker's socket": 'attempt(lambda: os.stat("/var/run/docker.sock"))',
    "writing to the system": 'attempt(lambda: write("/usr/lib/python3/x.pth"))',
    "writing to etc": 'attempt(lambda: write("/etc/ld.so.preload"))',
    "writing to tmp": 'attempt(lambda: write("/tmp/x"))',
    "writing to shared memory": 'attempt(lambda: write("/dev/shm/x"))',
    "writing to the executor": 'attempt(lambda: write("/run/executor.pyc"))',
    "replacing the supervisor's socket": 'attempt(lambda: os.rename("/tmp/supervisor.sock", "/tmp/x"))',
    "leaving by dots": 'attempt(lambda: read("../../../../../../" + HOST_FOLDER + "/secret"))',
    "leaving by a link": 'attempt(lambda: (os.symlink(HOST_FOLDER, "outputs/h"), read("outputs/h/secret")))',
    "the secret in the environment": 'attempt(lambda: [value for value in os.environ.values() if "the-secret" in value], bool)',
    "secrets in its own memory": 'attempt(lambda: "the-secret" in str(sys.argv) + str(vars(sys.modules["__main__"])), bool)',
}  # fmt: skip
"""Each prints ESCAPED if it has what it wanted."""

_RACE = """
import os, subprocess, sys, time
write("a"); os.symlink(HOST_FOLDER + "/secret", "b")
loop = "while :; do ln -sf %s/secret outputs/a; rm -f outputs/a; echo x >outputs/a; done" % HOST_FOLDER
subprocess.Popen(["/bin/sh", "-c", loop], start_new_session=True)
time.sleep(0.2)
"""
ENDS: Mapping[str, tuple[str, Sequence[str]]] = {
    # What is made, and the codes with which that may end.
    "a link as a file": ('os.symlink(HOST_FOLDER + "/secret", "outputs/a")', ["artifact_validation_failed"]),
    "a link as a folder": ('os.rmdir("outputs"); os.symlink(HOST_FOLDER, "outputs")', ["artifact_validation_failed", "missing_output_files"]),
    "a second name": ('write("outputs/b"); os.link("outputs/b", "outputs/a")', ["artifact_validation_failed"]),
    "a second name of a system file": ('os.link("/usr/bin/python3", "outputs/a")', ["program_failed"]),
    "a pipe": ('os.mkfifo("outputs/a")', ["artifact_validation_failed", "program_failed"]),
    "a folder": ('os.mkdir("outputs/a")', ["artifact_validation_failed"]),
    "a sparse file": ('open("outputs/a", "wb").truncate(15_000_000)', ["file_limit"]),
    "a huge sparse file": ('open("outputs/a", "wb").truncate(1 << 40)', ["file_limit"]),
    "a race of links": (_RACE, ["", "artifact_validation_failed", "missing_output_files"]),
    "a zip bomb": ('import zipfile\nwith zipfile.ZipFile("outputs/a", "w", 8) as z: z.writestr("x", bytes(20_000_000))', [""]),
    "a folder that nobody may enter": ('os.mkdir("outputs/c"); os.chmod("outputs/c", 0); os.chmod("outputs", 0)', ["", "artifact_validation_failed", "missing_output_files"]),
    # What is used up.
    "a fork bomb": ("import threading\nwhile True: os.fork()", ["process_limit", "timeout", "program_failed", "cpu_limit", "memory_limit"]),
    "threads": ("import threading, time\nfor n in range(500): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()", ["process_limit", "program_failed"]),
    "memory": ("x = bytearray(1 << 30)\nfor n in range(0, 1 << 30, 4096): x[n] = 1", ["memory_limit", "program_failed"]),
    "memory of many": ("for n in range(8):\n  if not os.fork():\n    x = bytearray(100_000_000)\n    for i in range(0, len(x), 4096): x[i] = 1\nimport time; time.sleep(60)", ["memory_limit", "timeout", "program_failed"]),
    "shared memory": ("import mmap\nx = mmap.mmap(-1, 1 << 30)\nfor n in range(0, 1 << 30, 4096): x[n] = 1", ["memory_limit", "program_failed"]),
    "disk": ('import time\nfor n in range(200): open(f"outputs/{n}", "wb").write(bytes(900_000)); time.sleep(0.01)', ["disk_limit"]),
    "one large file": ('open("outputs/a", "wb").write(bytes(60_000_000))', ["file_limit"]),
    "inodes": ('import time\nfor n in range(100_000): os.mkdir(f"outputs/{n}")\ntime.sleep(9)', ["disk_limit"]),
    "descriptors": ("x = [os.dup(1) for n in range(10_000)]", ["program_failed"]),
    "processor": ("while True: pass", ["cpu_limit", "timeout"]),
    "output": ("while True: print('x' * 10_000)", ["output_limit"]),
    "errors": ("while True: print('x' * 10_000, file=sys.stderr)", ["output_limit"]),
    "a process that stays": ("import subprocess\nsubprocess.Popen(['/bin/sleep', '4713'], start_new_session=True)", [""]),
    "ignored signals": ("import signal, time\nfor n in range(1, 32):\n  try: signal.signal(n, signal.SIG_IGN)\n  except OSError: pass\nwhile True: time.sleep(1)", ["timeout"]),
    # What is said to the supervisor.
    "a token again": ('os.write(19, b\'{"hello": "%s", "features": []}\\n\' % (b"0" * 64))\nimport time; time.sleep(60)', ["message_refused"]),
    "a huge message": ("os.write(19, b'{\"emit\": \"' + b'x' * 200_000)\nimport time; time.sleep(60)", ["message_refused"]),
    "a deep message": ("os.write(19, b'{\"emit\": \"e\", \"data\": ' + b'[' * 90_000 + b'\\n')\nimport time; time.sleep(60)", ["message_refused"]),
    "a long number": ("os.write(19, b'{\"id\": 1, \"tool\": \"shop.find\", \"arguments\": {\"n\": ' + b'9' * 50_000 + b'}}\\n')\nimport time; time.sleep(60)", ["message_refused"]),
    "a number twice": ("m = b'{\"id\": 7, \"tool\": \"shop.find\", \"arguments\": {}}\\n'\nos.write(19, m + m)\nimport time; time.sleep(60)", ["message_refused"]),
    "garbage": ("os.write(19, bytes(range(256)) * 4 + b'\\n')\nimport time; time.sleep(60)", ["message_refused"]),
    "a slow message": ("import time\nwhile True:\n  os.write(19, b' '); time.sleep(0.1)", ["timeout", "message_refused"]),
    "many calls": ("for n in range(50): await tools.call('shop.find')", ["call_limit"]),
    "many events": ("for n in range(5_000): emit('e')\nimport time; time.sleep(60)", ["message_refused"]),
    "calls whose answers nobody reads": ("import json\nfor n in range(1, 20): os.write(19, json.dumps({'id': n, 'tool': 'shop.large', 'arguments': {}}).encode() + b'\\n')\nimport time; time.sleep(60)", ["timeout"]),
    "a tool that is not offered": ("await tools.call('shop.secret')", ["program_failed"]),
    "a forged result": ('import json\nprint(json.dumps({"ok": True, "artifacts": [{"filename": "a"}]}))\nwrite("../exec_result_e.json", "{}")', ["missing_output_files"]),
    "a forged answer": ("os.write(19, b'go\\n{\"id\": 1, \"ok\": true}\\n')\nimport time; time.sleep(60)", ["message_refused"]),
    "a closed connection": ("os.close(19)", ["missing_output_files"]),
}  # fmt: skip

NAMES: Sequence[str] = (*ATTEMPTS, *ENDS)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a program got out, and what stopped it."""

    name: str
    escaped: bool
    stopped_by: str


class Canaries:
    """What a program must not reach: ports, sockets, a secret file, a process. `touched` counts what did."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.touched = 0
        (folder / "secret").write_text(SECRET)
        self._sockets = [socket.create_server(("127.0.0.1", 0))]
        self.port: int = self._sockets[0].getsockname()[1]
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        datagrams.bind(("127.0.0.1", self.port))
        for address in (f"\0canary-{self.port}", str(folder / "canary.sock")):
            listening = socket.socket(socket.AF_UNIX)
            listening.bind(address)
            listening.listen()
            self._sockets.append(listening)
        self._sockets.append(datagrams)

    def watch(self) -> None:
        for open_socket in self._sockets:
            open_socket.setblocking(False)
            try:
                if open_socket.type == socket.SOCK_DGRAM:
                    open_socket.recv(1)
                else:
                    open_socket.accept()[0].close()
                self.touched += 1
            except BlockingIOError:
                continue

    def close(self) -> None:
        for open_socket in self._sockets:
            open_socket.close()


@contextmanager
def canaries(folder: Path) -> Generator[Canaries]:
    os.environ["CANARY_SECRET"] = SECRET
    opened = Canaries(folder)
    try:
        yield opened
    finally:
        opened.close()
        del os.environ["CANARY_SECRET"]


async def _serve(tool: str, arguments: JsonObject) -> ServedCall:
    del arguments
    return ServedCall(True, "x" * 500_000 if tool == "shop.large" else "found")


async def judge(sandbox: Sandbox, name: str, watched: Canaries) -> Verdict:
    program, codes = ENDS.get(name) or (ATTEMPTS[name], [""])
    execution = Execution(
        execution_id="e",
        turn_id="turn_1",
        program=f"{PRELUDE}\n{program}",
        contract=parse_contract([{"filename": "a"}], "turn_1") if name in ENDS else (),
        tools=("shop.find", "shop.large"),
        variables=_variables(watched),
        limits=LIMITS if "timeout" in codes else replace(LIMITS, wall_seconds=60.0),
    )
    end = await sandbox.run(execution, Session(serve=_serve))
    watched.watch()
    result = result_of(execution, end)
    return Verdict(name, _escaped(result, codes), _stopped_by(result))


def _escaped(result: ExecutionResult, codes: Sequence[str]) -> bool:
    code = result.failure.code if result.failure else ""
    files = [item.data for item in result.items] + [file.data for file in result.others]
    stored = [data for data in files if data is not None]
    taken = any(SECRET.encode() in data for data in stored)
    printed = "ESCAPED" in result.user_out_tail or SECRET in result.report_text
    silent = codes == [""] and not result.end.user_out and not stored
    unexpected = code not in codes and not (code == "missing_output_files" and codes == [""])
    return taken or printed or (silent and code == "") or unexpected


def _stopped_by(result: ExecutionResult) -> str:
    last = result.user_out_tail.strip().rpartition("\n")[2]
    if last.startswith("STOPPED"):
        return last.removeprefix("STOPPED ")
    if result.failure is None:
        return "it may: files below the roots of the contract are stored or reported"
    detail = "" if result.failure.managed else f": {result.failure.message[:60]}"
    return f"{result.failure.code}{detail}"


async def judge_attempts(sandbox: Sandbox, watched: Canaries) -> Sequence[Verdict]:
    """Make every attempt in a process of its own, all in one program, and say what became of each."""
    program = f"""
for name, code in {dict(ATTEMPTS)!r}.items():
    if not os.fork():
        print(f"\\n{{name}}", end="\\t", flush=True)
        exec(code)
        sys.stdout.flush()
        os._exit(0)
    os.wait()
"""
    execution = Execution(
        execution_id="e",
        turn_id="turn_1",
        program=f"{PRELUDE}\n{program}",
        variables=_variables(watched),
        limits=replace(LIMITS, wall_seconds=30.0, cpu_seconds=30),
    )
    end = await sandbox.run(execution, Session(serve=_serve))
    watched.watch()
    printed = dict(line.split("\t", 1) for line in end.user_out.splitlines() if "\t" in line)
    return [
        Verdict(name, not printed.get(name, "").startswith("STOPPED "), printed.get(name, "")[8:])
        for name in ATTEMPTS
    ]


def _variables(watched: Canaries) -> Mapping[str, str]:
    return {
        "CANARY_PORT": str(watched.port),
        "CANARY_FOLDER": str(watched.folder),
        "CANARY_PID": str(os.getpid()),
    }


async def judge_all(
    sandbox: Sandbox, names: Sequence[str], watched: Canaries, *, at_once: int = 4
) -> Sequence[Verdict]:
    slots = asyncio.Semaphore(at_once)

    async def judged(name: str) -> Verdict:
        async with slots:
            return await judge(sandbox, name, watched)

    return await asyncio.gather(*map(judged, names))
