"""Windows' job objects: processes that end together, and a limit on their memory."""

from __future__ import annotations

import ctypes
import subprocess
import sys

assert sys.platform == "win32"

_EXTENDED_LIMITS = 9  # the names in Windows' headers are JobObjectExtendedLimitInformation,
_LIMIT_MEMORY, _END_AT_CLOSE = 0x100, 0x2000  # JOB_OBJECT_LIMIT_PROCESS_MEMORY, JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE


class _Limits(ctypes.Structure):
    """JOBOBJECT_EXTENDED_LIMIT_INFORMATION."""

    _fields_ = (
        ("times", ctypes.c_int64 * 2),
        ("flags", ctypes.c_uint32),
        ("working_set", ctypes.c_size_t * 2),
        ("active_processes", ctypes.c_uint32),
        ("affinity", ctypes.c_size_t),
        ("priority_and_scheduling", ctypes.c_uint32 * 2),
        ("counters", ctypes.c_uint64 * 6),
        ("process_memory", ctypes.c_size_t),
        ("other_memory", ctypes.c_size_t * 3),
    )


class Job:
    """Processes and all that they start. `close` ends them. Each may have `max_bytes` of memory."""

    def __init__(self, max_bytes: int) -> None:
        self._windows = ctypes.WinDLL("kernel32", use_last_error=True)
        self._windows.CreateJobObjectW.restype = ctypes.c_void_p
        self._handle = ctypes.c_void_p(self._windows.CreateJobObjectW(None, None))
        limits = _Limits(flags=_LIMIT_MEMORY | _END_AT_CLOSE, process_memory=max_bytes)
        size = ctypes.sizeof(limits)
        self._call("SetInformationJobObject", _EXTENDED_LIMITS, ctypes.byref(limits), size)

    def add(self, process: subprocess.Popen) -> None:
        """Add a process."""
        self._call("AssignProcessToJobObject", ctypes.c_void_p(int(process._handle)))  # type: ignore[attr-defined]

    def close(self) -> None:
        """End the processes."""
        self._call("TerminateJobObject", 1)
        self._call("CloseHandle")

    def _call(self, name: str, *arguments: object) -> None:
        if not getattr(self._windows, name)(self._handle, *arguments):
            raise ctypes.WinError(ctypes.get_last_error())
