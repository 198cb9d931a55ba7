"""Every system call of a command that touches files below a folder, seen before it is carried out: let it be, or not.

The kernel hands them over (seccomp's user notification, Linux 5.5 on x86-64), so that what Python, NumPy, Rust and C
write is seen alike, with the processes that a command starts. Nothing is compiled.
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
from tests.campaigns.forked import Ended

_ALLOW, _NOTIFY, _CONTINUE = 0x7FFF0000, 0x7FC00000, 1
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_AT_FDCWD = -100
_SECCOMP, _NEW_LISTENER, _MMAP = 317, 8, 9

# What a call is, and which of its arguments name a file: ("path", n), ("at", n) for a directory and a path after it,
# ("fd", n).
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
    """A call: what it is, on which file below the folder, by which process; of a rename also to what."""

    name: str
    path: Path
    process: int
    target: Path | None = None


Decide = Callable[[Call], int | None]  # None lets the call be; a number is the error that it ends with; 0: kill


def is_possible() -> bool:
    """Return True if this kernel can hand system calls to another process."""
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        return False
    sizes = (ctypes.c_uint16 * 3)()
    return ctypes.CDLL(None).syscall(_SECCOMP, 3, 0, sizes) == 0 and list(sizes) == [80, 24, 64]


def _program() -> ctypes.Array[ctypes.c_char]:
    """The filter: hand over the calls above, mmap only of files, all others go through."""

    def statement(code: int, yes: int, no: int, value: int) -> bytes:
        return struct.pack("=HBBI", code, yes, no, value)

    load, equal, end = 0x20, 0x15, 0x06
    numbers = [number for number in _CALLS if number != _MMAP]
    lines = [
        statement(load, 0, 0, 0),  # the call's number
        statement(equal, 0, 4, _MMAP),
        statement(load, 0, 0, 16 + 8 * 4),  # its fifth argument, a descriptor
        statement(equal, 0, 1, 0xFFFFFFFF),
        statement(end, 0, 0, _ALLOW),
        statement(end, 0, 0, _NOTIFY),
        *(statement(equal, len(numbers) - position, 0, number) for position, number in enumerate(numbers)),
        statement(end, 0, 0, _ALLOW),
        statement(end, 0, 0, _NOTIFY),
    ]
    return ctypes.create_string_buffer(b"".join(lines))


def hand_over(end: socket.socket) -> None:
    """In the process to be watched: from here on its calls wait for the answer of whoever holds the other end."""
    library = ctypes.CDLL(None, use_errno=True)
    code = _program()
    program = struct.pack("=HxxxxxxQ", (len(code) - 1) // 8, ctypes.addressof(code))
    library.prctl(38, 1, 0, 0, 0)  # no new privileges
    listener = library.syscall(_SECCOMP, 1, _NEW_LISTENER, ctypes.create_string_buffer(program))
    assert listener >= 0, os.strerror(ctypes.get_errno())
    socket.send_fds(end, [b"x"], [listener])
    os.close(listener)
    end.close()


def run(words: Sequence[str], folder: Path, logs: Path, decide: Decide) -> Ended:
    """Run `albert WORDS` in the folder with its calls below it watched; see `forked.run`."""
    ours, theirs = socket.socketpair()

    def before() -> None:
        ours.close()
        hand_over(theirs)

    child = forked.start(words, folder, logs, before)
    theirs.close()
    watch(ours, folder, decide)
    return forked.wait(child, logs)


def watch(end: socket.socket, folder: Path, decide: Decide) -> None:
    """Answer for every call of the process (and of those that it starts) until all have ended."""
    _, (listener, *_), _, _ = socket.recv_fds(end, 1, 1)
    end.close()
    inside = str(folder)
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    try:
        while True:
            events = poll.poll(300_000)  # milliseconds without a call: it hangs, and `forked.wait` ends it
            if not events or not events[0][1] & select.POLLIN:
                return
            request = bytearray(80)
            try:
                fcntl.ioctl(listener, _RECEIVE, request)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EINTR):  # it was killed meanwhile
                    continue
                raise
            answer = _answer(request, inside, decide)
            try:
                fcntl.ioctl(listener, _SEND, answer)
            except OSError as error:
                if error.errno != errno.ENOENT:
                    raise
    finally:
        os.close(listener)


def _answer(request: bytearray, inside: str, decide: Decide) -> bytes:
    ident, process, _, number, _, _ = struct.unpack_from("=QIIiIQ", request)
    arguments = struct.unpack_from("=6q", request, 32)
    name, (how, first) = _CALLS[number]
    path = _path(process, how, arguments[first], arguments[first + 1] if first < 5 else 0)
    if path is None or not path.startswith(inside):
        return struct.pack("=QqiI", ident, 0, 0, _CONTINUE)
    to = first + 1 if how == "path" else first + 2  # of a rename
    target = _path(process, how, arguments[to], arguments[to + 1]) if name == "rename" else None
    error = decide(Call(name, Path(path), process, Path(target) if target else None))
    if error is None:
        return struct.pack("=QqiI", ident, 0, 0, _CONTINUE)
    if error == 0:
        os.kill(process, signal.SIGKILL)
    return struct.pack("=QqiI", ident, 0, -(error or errno.EIO), 0)


def _path(process: int, how: str, first: int, second: int) -> str | None:
    try:
        if how == "fd":
            return str(Path(f"/proc/{process}/fd/{ctypes.c_int(first).value}").readlink())
        directory, address = (ctypes.c_int(first).value, second) if how == "at" else (_AT_FDCWD, first)
        with open(f"/proc/{process}/mem", "rb", buffering=0) as memory:  # noqa: PTH123
            memory.seek(address)
            told = memory.read(4096 - address % 4096)
            if b"\0" not in told:
                told += memory.read(4096)
        path = os.fsdecode(told.partition(b"\0")[0])
        if not path.startswith("/"):
            base = "cwd" if directory == _AT_FDCWD else f"fd/{directory}"
            path = f"{Path(f'/proc/{process}/{base}').readlink()}/{path}"
        return os.path.normpath(path)
    except OSError:
        return None
