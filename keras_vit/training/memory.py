"""How much memory there is, and pictures kept in a share of it."""

import os
import pathlib
import threading

_CONTROL_GROUP = pathlib.Path("/sys/fs/cgroup")  # of a container
_MEMORY_INFO = pathlib.Path("/proc/meminfo")


def free_memory():
    """Bytes that this process may still take: of the container if there is one, else of the machine.

    Where the system does not tell, half of the memory of the machine, or 2 GB.
    """
    try:
        lines = _MEMORY_INFO.read_text().splitlines()
        available = next(int(x.split()[1]) for x in lines if x.startswith("MemAvailable")) * 1024
    except OSError:
        try:
            available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
        except (AttributeError, ValueError):
            available = 2_000_000_000
    try:
        limit = int((_CONTROL_GROUP / "memory.max").read_text())
        used = int((_CONTROL_GROUP / "memory.current").read_text())
    except (OSError, ValueError):  # no such files, or the limit is "max"
        return available
    return max(0, min(available, limit - used))


class PictureCache:
    """Arrays by number, kept until they fill so many bytes; what comes later is not kept.

    Args:
        size: bytes.
    """

    def __init__(self, size):
        self._left = size
        self._arrays = {}
        self._lock = threading.Lock()

    def get(self, index, load):
        """The array of this number, from `load()` unless it is kept."""
        array = self._arrays.get(index)
        if array is None:
            array = load()
            with self._lock:
                if index not in self._arrays and array.nbytes <= self._left:
                    self._arrays[index] = array
                    self._left -= array.nbytes
        return array
