"""Intercept the system calls of a command on the files below a folder, and decide which of them fail.

The kernel notifies this process of each call before it executes (seccomp's user notification, Linux 5.5 on x86-64).
This covers calls by Python, NumPy, Rust and C, and those of the processes that a command starts. Nothing is compiled.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import select
import signal
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.campaigns import forked
from tests.campaigns.forked import Result

_ALLOW, _NOTIFY, _CONTINUE = 0x7FFF0000, 0x7FC00000, 1
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_AT_FDCWD = -100
_SECCOMP, _NEW_LISTENER, _MMAP = 317, 8, 9

# By the number of a system call: its kind, and the argument that names its file. This is a path, ("path", n), a file
# descriptor, ("fd", n), or the descriptor of a directory, ("at", n), with a path as the next argument.
_CALLS: dict[int, tuple[str, tuple[str, int]]] = {
    2: ("open", ("path", 0)), 257: ("open", ("at", 0)), 85: ("open", ("path", 0)),
    1: ("write", ("fd", 0)), 18: ("write", ("fd", 0)), 20: ("write", ("fd", 0)), 77: ("write", ("fd", 0)),
    74: ("fsync", ("fd", 0)), 75: ("fsync", ("fd", 0)),
    82: ("rename", ("path", 0)), 264: ("rename", ("at", 0)), 316: ("rename", ("at", 0)),
    86: ("link", ("path", 1)), 265: ("link", ("at", 2)), 88: ("link", ("path", 1)),
    87: ("unlink", ("path", 0)), 263: ("unlink", ("at", 0)), 84: ("unlink", ("path", 0)),
    83: ("mkdir", ("path", 0)), 258: ("mkdir", ("at", 0)),
    90: ("chmod", ("path", 0)), 268: ("chmod", ("at", 0)),
    _MMAP: ("mmap", ("fd", 4)),
}  # fmt: skip
NAMES = tuple(dict.fromkeys(name for name, _ in _CALLS.values()))


@dataclass(frozen=True)
class Call:
    """A system call: its kind, its file, and the number of its process."""

    name: str
    path: Path
    process: int
    target: Path | None = None  # the new path, if the call renames a file


# None: the kernel executes the call. 0: the process is killed in the call. Any other number is the errno of the call.
Decide = Callable[[Call], int | None]


def is_possible() -> bool:
    """Return True if this kernel can notify another process of system calls."""
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        return False
    sizes = (ctypes.c_uint16 * 3)()
    return ctypes.CDLL(None).syscall(_SECCOMP, 3, 0, sizes) == 0 and list(sizes) == [80, 24, 64]


def _filter_program() -> ctypes.Array[ctypes.c_char]:
    """Return the seccomp filter: notify of the calls in `_CALLS`, of mmap only for files; allow all other calls."""

    def statement(code: int, jump_true: int, jump_false: int, value: int) -> bytes:
        return struct.pack("=HBBI", code, jump_true, jump_false, value)

    load = 0x20
    equal = 0x15
    end = 0x06
    numbers = [number for number in _CALLS if number != _MMAP]
    instructions = [
        statement(load, 0, 0, 0),  # the call's number
        statement(equal, 0, 4, _MMAP),
        statement(load, 0, 0, 16 + 8 * 4),  # the fifth argument, a file descriptor
        statement(equal, 0, 1, 0xFFFFFFFF),
        statement(end, 0, 0, _ALLOW),
        statement(end, 0, 0, _NOTIFY),
        *(statement(equal, len(numbers) - position, 0, number) for position, number in enumerate(numbers)),
        statement(end, 0, 0, _ALLOW),
        statement(end, 0, 0, _NOTIFY),
    ]
    return ctypes.create_string_buffer(b"".join(instructions))


def install_filter(connection: socket.socket) -> None:
    """Install the filter in this process, and send the descriptor that receives its notifications.

    From then on, each call in `_CALLS` waits for an answer from the process that has the descriptor.
    """
    library = ctypes.CDLL(None, use_errno=True)
    instructions = _filter_program()
    program = struct.pack("=HxxxxxxQ", (len(instructions) - 1) // 8, ctypes.addressof(instructions))
    library.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS, without which only root may install a filter
    listener = library.syscall(_SECCOMP, 1, _NEW_LISTENER, ctypes.create_string_buffer(program))
    assert listener >= 0, os.strerror(ctypes.get_errno())
    socket.send_fds(connection, [b"x"], [listener])
    os.close(listener)
    connection.close()


def run(arguments: Sequence[str], folder: Path, logs: Path, decide: Decide) -> Result:
    """Run `albert ARGUMENTS` in the folder; `decide` sees the calls on files below it. See `forked.run`."""
    parent_end, child_end = socket.socketpair()

    def install_in_child() -> None:
        parent_end.close()
        install_filter(child_end)

    child = forked.start(arguments, folder, logs, install_in_child)
    child_end.close()
    watch(parent_end, folder, decide)
    return forked.wait(child, logs)


def watch(connection: socket.socket, folder: Path, decide: Decide) -> None:
    """Answer every call of the process, and of the processes that it starts, until all of them have exited."""
    _, (listener, *_), _, _ = socket.recv_fds(connection, 1, 1)
    connection.close()
    prefix = str(folder)
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    try:
        while True:
            events = poll.poll(300_000)  # milliseconds; without a call the process hangs, and `forked.wait` kills it
            if not events or not events[0][1] & select.POLLIN:
                return
            request = bytearray(80)
            try:
                fcntl.ioctl(listener, _RECEIVE, request)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EINTR):  # the process was killed after the poll
                    continue
                raise
            answer = _answer(request, prefix, decide)
            try:
                fcntl.ioctl(listener, _SEND, answer)
            except OSError as error:
                if error.errno != errno.ENOENT:
                    raise
    finally:
        os.close(listener)


def _answer(request: bytearray, prefix: str, decide: Decide) -> bytes:
    """Return the answer to a notification: execute the call, or let it fail; kill its process if `decide` returns 0."""
    identifier, process, _, number, _, _ = struct.unpack_from("=QIIiIQ", request)
    arguments = struct.unpack_from("=6q", request, 32)
    name, (kind, first) = _CALLS[number]
    path = _path(process, kind, arguments[first], arguments[first + 1] if first < 5 else 0)
    if path is None or not path.startswith(prefix):
        return struct.pack("=QqiI", identifier, 0, 0, _CONTINUE)
    second = first + 1 if kind == "path" else first + 2  # the argument with the new path of a rename
    target = _path(process, kind, arguments[second], arguments[second + 1]) if name == "rename" else None
    error = decide(Call(name, Path(path), process, Path(target) if target else None))
    if error is None:
        return struct.pack("=QqiI", identifier, 0, 0, _CONTINUE)
    if error == 0:
        os.kill(process, signal.SIGKILL)
    return struct.pack("=QqiI", identifier, 0, -(error or errno.EIO), 0)


def _path(process: int, kind: str, first: int, second: int) -> str | None:
    """Return the absolute path that an argument of a kind names, None if unreadable; `second` is the next argument."""
    try:
        if kind == "fd":
            return str(Path(f"/proc/{process}/fd/{ctypes.c_int(first).value}").readlink())
        directory = ctypes.c_int(first).value if kind == "at" else _AT_FDCWD
        address = second if kind == "at" else first
        with open(f"/proc/{process}/mem", "rb", buffering=0) as memory:  # noqa: PTH123
            memory.seek(address)
            content = memory.read(4096 - address % 4096)  # the next page may not be mapped
            if b"\0" not in content:
                content += memory.read(4096)
        path = os.fsdecode(content.partition(b"\0")[0])
        if not path.startswith("/"):
            base = "cwd" if directory == _AT_FDCWD else f"fd/{directory}"
            path = f"{Path(f'/proc/{process}/{base}').readlink()}/{path}"
        return os.path.normpath(path)
    except OSError:
        return None
