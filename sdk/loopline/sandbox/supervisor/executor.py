"""The executor: a script that isolates its own process and then runs the program of an execution.

The Python of the sandbox runs it. It imports few modules, and most of them late, because every program waits for its
start.
"""

from __future__ import annotations

import marshal
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping
    from importlib.machinery import ModuleSpec
    from types import ModuleType, TracebackType
    from typing import Any, NoReturn

START_FD = 0
SOCKET_FD = 19
"""The descriptor of the connection to the supervisor."""

OWN_EVENTS = ("question", "file", "plan", "input", "background.started")
OWN_PREFIXES = ("loopline.", "crew.", "chat.", "conv.", "queue.", "solver.")
"""The beginnings of the names of events that a program may not emit: ours, and those of KDCube's own."""
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_SET_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER_MODE = 38, 22, 2
_AMBIENT, _CLEAR_ALL, _CAPABILITIES = 47, 4, 0x2008_0522
_NEW_MOUNTS, _RDONLY, _NOSUID, _NODEV, _BIND = 0x0002_0000, 1, 2, 4, 4096
_OPEN_TREE, _HERE, _CLONE, _RECURSIVE = 428, -100, 1, 0x8000
_READS = 0b1101
_WRITES_BY_VERSION = {1: 0b1_0001_1011_0010, 2: 1 << 13, 3: 1 << 14}
"""The rights to write files and folders that each version of Landlock added, without devices, sockets and pipes."""


class IsolationError(Exception):
    """A step of the isolation has failed, so the program does not run."""


def read_start(descriptor: int) -> dict[str, Any]:
    """Read the start message from a descriptor, and replace the descriptor by an empty input."""
    parts: list[bytes] = []
    while part := os.read(descriptor, 1 << 16):
        parts.append(part)
    start: dict[str, Any] = marshal.loads(b"".join(parts))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, descriptor)
    os.close(nothing)
    return start


def mount_disk(kernel: _Kernel, channel: int, options: str) -> None:
    """Mount a file system for the program's folders, send it over `channel`, and wait until it is filled.

    Raises:
        IsolationError: the kernel refuses a mount, or the supervisor does not fill the file system.
    """
    import _socket

    workspace = os.environ["WORKDIR"].rpartition("/")[0]
    out = f"{workspace}/out"
    flags = _NOSUID | _NODEV
    kernel.do("unshare", _NEW_MOUNTS)
    kernel.do("mount", b"tmpfs", out.encode(), b"tmpfs", flags, options.encode())
    root = os.open(out, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    connection = _socket.socket(fileno=channel)
    rights = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, root.to_bytes(4, sys.byteorder))
    connection.sendmsg([b"d"], [rights])
    if connection.recv(1) != b"f":
        raise IsolationError("disk: the supervisor did not fill it")
    connection.close()
    os.close(root)
    for name in ("work", "out"):  # `out` is last, because it covers the root of the file system
        kernel.do("mount", f"{out}/{name}".encode(), f"{workspace}/{name}".encode(), b"", _BIND, 0)


def hide_mounts(kernel: _Kernel) -> None:
    """Change to a copy of all mounts that is not mounted itself, so that `/proc/self/mountinfo` is empty.

    It would show the paths of mounted folders on the host. The first process of the sandbox, which keeps the mounts
    themselves, is covered.
    """
    kernel.do("mount", b"tmpfs", b"/proc/1", b"tmpfs", _RDONLY | _NOSUID | _NODEV, b"size=4k")
    root = kernel.call(_OPEN_TREE, _HERE, b"/", _CLONE | _RECURSIVE | os.O_CLOEXEC)
    if root < 0:
        raise IsolationError(f"open_tree: {kernel.error}")
    os.chdir(root)
    os.chroot(".")
    os.close(root)


def drop_rights(kernel: _Kernel, user: int) -> None:
    """Change to `user` if this process is root, and drop all capabilities.

    Raises:
        IsolationError: the program would still run as root.
    """
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    if 0 in (os.getuid(), os.geteuid()):
        raise IsolationError("uid: the program would run as root")
    kernel.control(_AMBIENT, _CLEAR_ALL)
    kernel.do("capset", _CAPABILITIES.to_bytes(4, sys.byteorder) + bytes(4), bytes(24))


def limit_resources(limits: Mapping[str, int]) -> None:
    """Set resource limits, by name, for this process and its children; they cannot raise them again.

    A value above the present hard limit is lowered to it. The hard limit of CPU time is, if possible, one second
    higher.
    """
    import resource

    for name, value in limits.items():
        kind: int = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        lowest = value if hard == resource.RLIM_INFINITY else min(value, hard)
        # The soft limit of CPU time sends SIGXCPU, one second before the hard limit kills.
        hardest = lowest + 1 if name == "RLIMIT_CPU" and lowest != hard else lowest
        resource.setrlimit(kind, (lowest, hardest))


def connect(path: str) -> None:
    """Connect the descriptor `SOCKET_FD` to the supervisor."""
    import _socket

    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    connection.connect(path)
    os.dup2(connection.detach(), SOCKET_FD)


class _Kernel:
    """System calls that Python does not offer, by `_ctypes`, because the import of `ctypes` takes longer."""

    def __init__(self) -> None:
        import _ctypes

        library: Any = _ctypes
        long: Any = type("Long", (library._SimpleCData,), {"_type_": "l"})
        text: Any = type("Text", (library._SimpleCData,), {"_type_": "z"})
        flags = {"_flags_": library.FUNCFLAG_CDECL | library.FUNCFLAG_USE_ERRNO, "_restype_": long}
        function: Any = type("Function", (library.CFuncPtr,), flags)
        self._long, self._text, self._last_error = long, text, library.get_errno
        symbols = library.dlopen(None, 0)
        self._library, self._symbols, self._function = library, symbols, function
        self._call = self._find("syscall")
        self._control = self._find("prctl")

    def call(self, number: int, *arguments: int | bytes) -> int:
        """Make a system call and return its result, -1 if it fails."""
        return self._invoke(self._call, (number, *arguments))

    def control(self, option: int, value: int, pointer: int | bytes = 0) -> int:
        """Call `prctl` and return its result, -1 if it fails."""
        return self._invoke(self._control, (option, value, pointer, 0, 0))

    def do(self, name: str, *arguments: int | bytes) -> None:
        """Call a function of the C library; raise IsolationError if it does not return 0."""
        if self._invoke(self._find(name), arguments):
            raise IsolationError(f"{name}: {self.error}")

    def _find(self, name: str) -> Any:
        return self._function(self._library.dlsym(self._symbols, name))

    def _invoke(self, function: Any, arguments: tuple[int | bytes, ...]) -> int:
        values = [self._text(a) if isinstance(a, bytes) else self._long(a) for a in arguments]
        return int(function(*values))

    @property
    def error(self) -> str:
        return os.strerror(self._last_error())

    def filter_calls(self, program: bytes) -> None:
        """Restrict this process to the system calls that a BPF program allows; raise IsolationError if that fails."""
        code = self._text(program)  # the bytes of this object are the address of the program
        header = (len(program) // 8).to_bytes(8, "little") + bytes(memoryview(code))
        if self.control(_SET_NO_NEW_PRIVS, 1) or self.control(_SET_SECCOMP, _FILTER_MODE, header):
            raise IsolationError(f"seccomp: {self.error}")


def restrict_files(kernel: _Kernel, writable: list[str], *, required: bool) -> bool:
    """Let this process write only below these folders, by Landlock; return false if the kernel does not support it.

    Raises:
        IsolationError: Landlock is `required` but not supported, or a call of it fails.
    """
    version = kernel.call(_LANDLOCK_CREATE, 0, 0, 1)
    if version < 1:
        if required:
            raise IsolationError(f"landlock: {kernel.error}")
        return False
    writes = sum(bits for since, bits in _WRITES_BY_VERSION.items() if since <= version)
    handled = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)) - 1
    attributes = handled.to_bytes(8, "little")
    if version >= 4:
        attributes += (3).to_bytes(8, "little")  # TCP: bind and connect
    if version >= 6:
        attributes += (3).to_bytes(8, "little")  # abstract sockets and signals
    ruleset = kernel.call(_LANDLOCK_CREATE, attributes, len(attributes), 0)
    rules = [("/", _READS), *((path, writes | _READS) for path in writable)]
    rules += [(path, 0b110) for path in ("/dev/null", "/dev/zero", "/dev/full")]
    for path, rights in rules:
        _allow(kernel, ruleset, path, rights & handled)
    if kernel.control(_SET_NO_NEW_PRIVS, 1) or kernel.call(_LANDLOCK_RESTRICT, ruleset, 0):
        raise IsolationError(f"landlock: {kernel.error}")
    os.close(ruleset)
    return True


def _allow(kernel: _Kernel, ruleset: int, path: str, rights: int) -> None:
    """Add `rights` below `path` to the Landlock rules; skip a path that cannot be opened.

    Raise IsolationError if the kernel refuses the rule.
    """
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    rule = rights.to_bytes(8, "little") + descriptor.to_bytes(4, "little")
    failed = kernel.call(_LANDLOCK_ADD, ruleset, 1, rule, 0)
    os.close(descriptor)
    if failed:
        raise IsolationError(f"landlock: {path}: {kernel.error}")


def isolate(start: Mapping[str, Any]) -> None:
    """Do all isolation steps, report them to the supervisor, and wait until it lets the program begin.

    If `start["isolated"]` is false, the resource limits are the only step of the isolation.

    Raises:
        IsolationError: a step fails, or the supervisor refuses.
    """
    features: list[str] = []
    kernel = _Kernel() if start["isolated"] else None
    if kernel is not None:
        os.umask(0o027)
        if start["disk"] is not None:
            mount_disk(kernel, *start["disk"])
            hide_mounts(kernel)
            features.append("disk")
        drop_rights(kernel, start["user"])
        features.append("uid")
    limit_resources(start["limits"])
    features.append("rlimits")
    os.chdir(start["folder"])
    connect(start["socket"])
    if kernel is not None:
        if restrict_files(kernel, start["writable"], required=start["landlock"]):
            features.append("landlock")
        kernel.filter_calls(start["seccomp"])
        features.append("seccomp")
    named = ", ".join(f'"{feature}"' for feature in features)
    os.write(SOCKET_FD, f'{{"hello": "{start["token"]}", "features": [{named}]}}\n'.encode())
    if os.read(SOCKET_FD, 3) != b"go\n":
        raise IsolationError("the supervisor did not let the program begin")


class ToolFailed(Exception):
    """A tool call failed; `code` is the status of the call."""

    def __init__(self, text: str, code: str) -> None:
        super().__init__(text)
        self.code = code


class Supervisor:
    """The connection to the supervisor, for tool calls and events. A call and its answer have the same number.

    `edited` has a dict for each call that the user approved with changed arguments: its `tool`, and the `arguments` that
    it ran with.
    """

    def __init__(self) -> None:
        self.edited: list[dict[str, Any]] = []
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._received = b""
        self._loop: asyncio.AbstractEventLoop | None = None

    async def call(
        self, name: str, arguments: Mapping[str, Any] | None = None, /, **named: Any
    ) -> Any:
        """Call a tool, such as `shop.find`, and return its result: its text or, if that is JSON, its value.

        Raises:
            ToolFailed: the tool failed, or the call was refused.
        """
        import asyncio

        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            loop.add_reader(SOCKET_FD, self._receive)
        self._number += 1
        number = self._number
        call = self._calls[number] = loop.create_future()
        self._send({"id": number, "tool": name, "arguments": {**(arguments or {}), **named}})
        answer = await call
        if answer["ran_with"] is not None:
            self.edited.append({"tool": name, "arguments": answer["ran_with"]})
        if not answer["ok"]:
            raise ToolFailed(answer["error"], answer["code"])
        return answer["value"]

    def emit(self, name: str, data: Any = None) -> None:
        """Emit an event to the listeners of the turn.

        Raises:
            ValueError: the name is that of an event of Loopline's own. The supervisor checks this too.
        """
        if name.casefold() in OWN_EVENTS or name.casefold().startswith(OWN_PREFIXES):
            raise ValueError(
                f"{name!r} is reserved for events of Loopline's own: choose another name"
            )
        self._send({"emit": name, "data": data})

    def _send(self, message: Mapping[str, Any]) -> None:
        """Write a message to the supervisor as a line of JSON; raise ValueError or TypeError if it is not JSON."""
        import json

        line = json.dumps(message, allow_nan=False).encode() + b"\n"
        sent = 0
        while sent < len(line):
            sent += os.write(SOCKET_FD, line[sent:])

    def _receive(self) -> None:
        """Read from the supervisor, and finish the calls that it answers; exit with 70 if it has disconnected."""
        import json

        received = os.read(SOCKET_FD, 1 << 18)
        if not received:
            os._exit(70)  # the supervisor has ended
        *lines, self._received = (self._received + received).split(b"\n")
        for line in lines:
            try:
                answer: dict[str, Any] = json.loads(line)
            except RecursionError:
                number = int(line.partition(b":")[2].partition(b",")[0])
                text = "the result is nested too deeply to be JSON"
                answer = {"id": number, "ok": False, "error": text, "code": "too_deep"}
                answer["ran_with"] = None
            call = self._calls.pop(answer["id"], None)
            if call is not None and not call.done():
                call.set_result(answer)


_ALWAYS = ("io_tools", "web_tools", "react_tools")
"""Modules that can be imported even if no tool has their alias, because existing programs import them."""


class ToolModules:
    """Imports the tools of an alias as a module: `import shop_tools`, or `import shop` if no other module has the name."""

    def __init__(self, supervisor: Supervisor, names: list[str]) -> None:
        self._supervisor = supervisor
        self._names = names

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return the spec of a module of tools; None if the name does not belong to tools.

        Raises:
            ModuleNotFoundError: the name ends in `_tools`, and no tool has this alias.
        """
        from importlib.machinery import ModuleSpec

        del path, target
        alias = name.removesuffix("_tools")
        aliases = {tool.split(".")[0] for tool in self._names}
        if name in _ALWAYS or alias in aliases or name in aliases:
            loader: Any = self
            return ModuleSpec(name, loader)
        if name.endswith("_tools"):  # no other importer has found it
            raise ModuleNotFoundError(
                f"{name}: no tool of {alias!r} is offered here: {self._offer}"
            )
        return None

    @property
    def _offer(self) -> str:
        return ", ".join(self._names) or "none"

    def create_module(self, spec: ModuleSpec) -> None:
        """Return None, so that Python creates the module."""
        del spec

    def exec_module(self, module: ModuleType) -> None:
        """Add a function to the module for each tool of its alias."""
        alias = module.__name__
        if not any(tool.startswith(f"{alias}.") for tool in self._names):
            alias = alias.removesuffix("_tools")
        for tool in self._names:
            if tool.startswith(f"{alias}."):
                setattr(module, tool.rpartition(".")[2], self._make_function(tool))
        if alias in ("io", "io_tools"):
            vars(module)["tool_call"] = self._tool_call
        if module.__name__ in _ALWAYS:
            vars(module)["__getattr__"] = self._make_fallback(module.__name__)

    def _make_function(self, tool: str) -> Callable[..., Any]:
        async def function(**arguments: Any) -> Any:
            return await self._supervisor.call(tool, arguments)

        return function

    def _make_fallback(self, module: str) -> Callable[[str], Any]:
        """Return a `__getattr__` for a module; in place of a tool that is not offered it returns a function that raises."""

        def attribute(name: str) -> Callable[..., Any]:
            """Return a coroutine function that raises ToolFailed; raise AttributeError for a private name."""
            if name.startswith("_"):
                raise AttributeError(f"module {module!r} has no attribute {name!r}")
            tool = f"{module.removesuffix('_tools')}.{name}"

            async def function(*values: Any, **arguments: Any) -> Any:
                del values, arguments
                raise ToolFailed(f"no tool {tool!r} is offered here: {self._offer}", "not_allowed")

            return function

        return attribute

    async def _tool_call(
        self, fn: str, params: Mapping[str, Any] | None = None, **described: Any
    ) -> Any:
        """Call a tool by its name; other named arguments, such as a reason, are ignored."""
        del described
        return await self._supervisor.call(fn, params)


def import_by(path: list[str]) -> None:
    """Set `sys.path` to the working directory and these folders, and add the builtins that the module `site` would add.

    Without folders, the present entries of `sys.path` follow the working directory.
    """
    import _sitebuiltins
    import builtins

    library: Any = _sitebuiltins
    names: Any = builtins
    names.exit, names.quit = (library.Quitter(name, "Ctrl-D") for name in ("exit", "quit"))
    names.help = library._Helper()
    sys.path[:] = [os.environ["WORKDIR"], *(path or sys.path)]


def run_python(file: str, names: list[str]) -> None:
    """Run a Python program, which may use `await` at the top level; `names` are the tools that it may call.

    Exceptions of the program are raised.
    """
    supervisor = Supervisor()
    finder: Any = ToolModules(supervisor, names)
    sys.meta_path.append(finder)

    async def fetch_ctx(ref: str) -> Any:
        return await supervisor.call("react.read", {"paths": [ref]})

    program: dict[str, Any] = {
        "__name__": "__main__",
        "__file__": file,
        "tools": supervisor,
        "ToolFailed": ToolFailed,
        "fetch_ctx": fetch_ctx,
        "emit": supervisor.emit,
        "WORKDIR": os.environ["WORKDIR"],
        "OUTPUT_DIR": os.environ["OUTPUT_DIR"],
    }
    descriptor = os.open(file, os.O_RDONLY)
    text = os.read(descriptor, os.fstat(descriptor).st_size)
    os.close(descriptor)
    top_level_await = 0x2000
    coroutine = 0x80
    code = compile(text, file, "exec", flags=top_level_await, dont_inherit=True)
    if code.co_flags & coroutine:
        import asyncio

        coroutine_of_program: Any = eval(code, program)
        asyncio.run(coroutine_of_program)
    else:
        exec(code, program)


def run_shell(file: str) -> NoReturn:
    """Replace this process by a shell that runs the program, without a connection to the supervisor."""
    os.close(SOCKET_FD)
    shell = "/bin/bash" if os.access("/bin/bash", os.X_OK) else "/bin/sh"
    os.execv(shell, [shell, file])


def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print the traceback of an uncaught exception without the frames of the executor."""
    import traceback

    frames = list(traceback.extract_tb(trace))
    program = [number for number, frame in enumerate(frames) if frame.filename == sys.argv[0]]
    frames = frames[program[0] if program else len(frames) :]
    frames = [frame for frame in frames if frame.filename != report.__code__.co_filename]
    sys.stderr.write("Traceback (most recent call last):\n" if frames else "")
    sys.stderr.writelines(traceback.format_list(frames))
    sys.stderr.writelines(traceback.format_exception_only(kind, error))


def main() -> int:
    """Isolate this process and run the program; return 0, or 71 if a step of the isolation fails.

    Exceptions of the program are raised. A shell program replaces this process, so its exit code is that of the shell.
    """
    start = read_start(START_FD)
    try:
        isolate(start)
    except (IsolationError, OSError, ValueError) as error:
        sys.stderr.write(f"isolation: {error}\n")
        return 71
    file = start["file"]
    if start["language"] == "shell":
        run_shell(file)
    sys.argv = [file]
    import_by(start["path"])
    sys.excepthook = report
    run_python(file, start["tools"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
