"""A process for answers: it has a socket for the results, and ends together with all processes that it starts.

On Linux and macOS the process gets the descriptor of the socket and begins a session, which is then killed. Windows has
neither: the process gets the socket through its standard input, and a job object ends it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

WINDOWS = sys.platform == "win32"
if sys.platform == "win32":
    from caffelite.exercises.windows_job import Job
else:
    import resource

MAX_BYTES = 4 * 2**30  # of memory, and of a file that an answer writes
ENDING_SIGNALS = [signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name)]


class Sandbox:
    """A running process of `python -m MODULE FILE SOCKET ARGUMENT…`; inside, `open_channel(SOCKET)` is the channel."""

    def __init__(self, module: str, file: Path, arguments: list[str], channel: socket.socket, **options: Any) -> None:
        descriptor = "stdin" if WINDOWS else str(channel.fileno())
        command = [sys.executable, "-m", module, str(file), descriptor, *arguments]
        options |= {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        if sys.platform == "win32":
            self._job = Job(MAX_BYTES)
            group = subprocess.CREATE_NEW_PROCESS_GROUP  # Ctrl-C only reaches this process
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, creationflags=group, **options)
            self._job.add(self._process)
            assert self._process.stdin is not None
            with self._process.stdin as stdin:
                stdin.write(channel.share(self._process.pid))
        else:
            descriptors = [channel.fileno()]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, start_new_session=True, pass_fds=descriptors, **options
            )

    def kill(self) -> None:
        """End the process and those that it has started."""
        if sys.platform == "win32":
            self._job.close()
        else:
            with suppress(ProcessLookupError, PermissionError):  # it has ended
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def open_channel(descriptor: str) -> socket.socket:
    """Inside the process, return its socket. Processes that it starts do not get the socket."""
    if sys.platform == "win32":
        channel = socket.fromshare(sys.stdin.buffer.read())
    else:
        channel = socket.socket(fileno=int(descriptor))
    channel.set_inheritable(False)
    return channel


def limit_memory() -> None:
    """Inside the process, limit the memory, and the size of files that it writes. On Windows, its job does so."""
    if sys.platform != "win32":
        for limit in (resource.RLIMIT_AS, resource.RLIMIT_FSIZE):
            with suppress(ValueError, OSError):  # macOS does not limit memory
                resource.setrlimit(limit, (MAX_BYTES, MAX_BYTES))


def forbid_signals(event: str, arguments: tuple[Any, ...]) -> None:
    """Raise PermissionError if an answer sends a signal to a process that it did not start, such as its teacher's."""
    if event in ("os.kill", "os.killpg"):
        process = arguments[0]
        if process == -1 or not _is_inside(abs(process)):
            raise PermissionError("an answer may only send signals to processes that it has started")


def _is_inside(process: int) -> bool:
    if sys.platform == "win32":
        return process == os.getpid()
    with suppress(ProcessLookupError):  # there is no such process; a group may outlive the one that it is named after
        return os.getsid(process) == os.getsid(0)
    return False


def remove_folder(folder: str, seconds: int) -> None:
    """Remove a folder with all that is in it. It may have a hundred thousand folders, each in another."""
    command = ["cmd", "/c", "rmdir", "/s", "/q", folder] if WINDOWS else ["rm", "-rf", folder]
    with suppress(subprocess.TimeoutExpired):
        subprocess.run(command, stderr=subprocess.DEVNULL, timeout=seconds)
