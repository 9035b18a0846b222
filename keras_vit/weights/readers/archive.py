"""Zip archives read in memory; their claims are checked before anything is believed."""

import os
import struct
import zipfile
import zlib

import numpy as np

from keras_vit.weights.readers.base import CheckpointError, damage, read_region

_CHUNK = 1 << 20
_DEFLATE_LIMIT = 1032  # no deflate stream expands further than that
_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    NotImplementedError,
    OSError,
    ValueError,
)


class Archive:
    """The members of an open zip file, by name."""

    def __init__(self, file):
        self.file = file
        with damage("zip archive", *_ERRORS):
            self._zip = zipfile.ZipFile(file)
        infos = [info for info in self._zip.infolist() if not info.filename.endswith("/")]
        self.members = {info.filename: info for info in infos}
        if len(self.members) < len(infos):
            raise CheckpointError("zip archive: two entries have one name")
        size = os.fstat(file.fileno()).st_size
        for info in infos:
            _check(info, size)

    def size(self, name) -> int:
        """Bytes of a member once unpacked."""
        return self.members[name].file_size

    def stored_at(self, name) -> int | None:
        """Where the bytes of an uncompressed member begin in the file; None if compressed."""
        info = self.members[name]
        if info.compress_type != zipfile.ZIP_STORED:
            return None
        with self.open(name):  # compares the local header with the directory
            self.file.seek(info.header_offset)
            name_length, extra_length = struct.unpack("<26xHH", self.file.read(30))
        return info.header_offset + 30 + name_length + extra_length

    def open(self, name):
        """A member as a stream of bytes, for its beginning."""
        with _damage(name):
            return self._zip.open(self.members[name])

    def head(self, name, size) -> bytes:
        """The first bytes of a member, without unpacking the rest."""
        with self.open(name) as stream, _damage(name):
            return stream.read(size)

    def read(self, name) -> np.ndarray:
        """All bytes of a member as uint8, checked against its CRC-32."""
        info, start = self.members[name], self.stored_at(name)
        if start is not None:
            data = read_region(self.file, start, info.file_size)
            if zlib.crc32(data) != info.CRC:
                raise CheckpointError(f"entry {name!r}: damaged, its checksum (CRC-32) is wrong")
            return data
        data, filled = np.empty(info.file_size, np.uint8), 0
        with self.open(name) as stream, _damage(name):
            while chunk := stream.read(_CHUNK):
                data[filled : filled + len(chunk)] = np.frombuffer(chunk, np.uint8)
                filled += len(chunk)
        if filled != data.size:
            raise CheckpointError(f"entry {name!r}: truncated or damaged")
        return data

    def verify(self, name) -> None:
        """Compare a member with its CRC-32 without keeping its bytes."""
        with self.open(name) as stream, _damage(name):
            while stream.read(_CHUNK):
                pass


def _damage(name):
    return damage(f"entry {name!r}", *_ERRORS)


def _check(info, size):
    """Refuse a member that could lead out of the archive or claims more than the file can hold."""
    name = info.filename
    parts = name.replace("\\", "/").split("/")
    if parts[0] == "" or ".." in parts:
        raise CheckpointError(f"entry {name!r}: a path that leads out of the archive is refused")
    if info.flag_bits & 1:
        raise CheckpointError(f"entry {name!r}: encrypted")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise CheckpointError(f"entry {name!r}: packed by a method other than stored or deflate")
    ratio = 1 if info.compress_type == zipfile.ZIP_STORED else _DEFLATE_LIMIT
    if info.compress_size > size or info.file_size > info.compress_size * ratio:
        raise CheckpointError(
            f"entry {name!r}: damaged, it claims {info.file_size} bytes from {info.compress_size} "
            f"in a file of {size}"
        )
