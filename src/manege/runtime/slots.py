"""A cell's slot: its last two centres in shared memory that has no name.

Owns the layout and how a reader learns that what it read was whole; knows nothing of cells. The
worker that trains the cell makes the slot and alone writes; others get the open file and map it
read-only. The memory is freed when the last of them closes it or dies.

Round r lies in place r mod 2, between two words that are both r + 1 when it is whole. A writer
marks the first word before it touches an array and sets it last.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
import struct
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress

import numpy as np

from manege.errors import MachineError

Lengths = tuple[tuple[str, int], ...]
"""The type and number of elements of each array, all of one dimension: ("float32", 1000), …"""

_MAGIC = b"MNGslot\n"
_VERSION = 1
_HEADER = struct.Struct("<8sII")
"""The header: magic, version, number of arrays."""
_ARRAY = struct.Struct("<8sQ")
"""An array in the header: type as numpy spells it, number of elements."""
_MAX_ARRAYS = 64
_LINE = 64
_WORD = 8
_WRITING = 1 << 63
"""The bit set in a place's first word while a round is being written there."""
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class _Place:
    """The memory of one round's arrays, and the words around them."""

    def __init__(self, memory: np.ndarray, lengths: Lengths) -> None:
        self.before = memory[:_WORD].view(np.uint64)
        at = _LINE
        self.arrays: list[np.ndarray] = []
        for name, length in lengths:
            kind = np.dtype(name)
            self.arrays.append(memory[at : at + length * kind.itemsize].view(kind))
            at += _lines(length * kind.itemsize)
        self.after = memory[at : at + _WORD].view(np.uint64)

    def words(self) -> tuple[int, int]:
        return int(self.before[0]), int(self.after[0])


class CentreSlot:
    """A cell's last two centres in shared memory, mapped into this process."""

    def __init__(self, memory: mmap.mmap, lengths: Lengths, file: int | None) -> None:
        """Take mapped memory (use `create` or `attach`); `file` is None if it can only be read."""
        self._memory: mmap.mmap | None = memory
        self._file = file
        # Not numpy.ndarray(buffer=…): arrays made so do not keep the memory from being unmapped.
        places = np.frombuffer(memory, np.uint8, offset=_header_bytes(lengths))
        self._places = [_Place(place, lengths) for place in np.split(places, 2)]

    @classmethod
    def create(cls, lengths: Sequence[tuple[str, int]]) -> CentreSlot:
        """Return a new slot to write to, with no round in it; raise MachineError without memory."""
        known = _checked(lengths)
        size = _bytes(known)
        file = -1
        try:
            file = os.memfd_create("manege-slot", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(file, size)
            os.pwrite(file, _header(known), 0)
            # A file that shrank would kill its readers by SIGBUS.
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
            memory = mmap.mmap(file, size, access=mmap.ACCESS_WRITE)
        except OSError as error:
            if file >= 0:
                os.close(file)
            raise _refused(size, error) from error
        return cls(memory, known, file)

    @classmethod
    def attach(cls, file: int, lengths: Sequence[tuple[str, int]]) -> CentreSlot:
        """Map another's slot to read it; raise ValueError unless it has arrays of those lengths.

        The descriptor stays the caller's, who may close it at once.
        """
        known = _checked(lengths)
        size = _bytes(known)
        _check(file, known)
        try:
            memory = mmap.mmap(file, size, access=mmap.ACCESS_READ)
        except OSError as error:
            raise _refused(size, error) from error
        return cls(memory, known, None)

    def fileno(self) -> int:
        """Return the file to hand to readers; raise ValueError if only read here, or closed."""
        if self._file is None:
            raise ValueError("no file to hand out: the slot is somebody else's, or closed")
        return self._file

    def close(self) -> None:
        """Unmap and close the memory; views still in use keep it until the last of them goes."""
        self._places = []
        if self._file is not None:
            os.close(self._file)
            self._file = None
        memory, self._memory = self._memory, None
        # Views that `read` gave out keep it mapped until they are dropped.
        with suppress(BufferError):
            if memory is not None:
                memory.close()

    def write(self, round_: int, arrays: Sequence[np.ndarray]) -> None:
        """Write a round's arrays, in place of those two rounds before."""
        if self._file is None:
            raise ValueError("a slot that is somebody else's, or closed, cannot be written")
        if round_ < 0:
            raise ValueError(f"round {round_}; expected 0 or more")
        place = self._places[round_ % 2]
        if lengths_of(arrays) != lengths_of(place.arrays):
            raise ValueError(f"arrays {lengths_of(arrays)}; expected {lengths_of(place.arrays)}")
        place.before[0] = _WRITING | (round_ + 1)
        _barrier()
        for array, new in zip(place.arrays, arrays, strict=True):
            np.copyto(array, new)
        place.after[0] = round_ + 1
        _barrier()
        place.before[0] = round_ + 1

    def read(self, round_: int) -> tuple[np.ndarray, ...]:
        """Return read-only views of a round's arrays; raise LookupError if it is not in the slot.

        They change under the reader when the writer goes on by two rounds: `check` tells.
        """
        if not self.check(round_):
            raise LookupError(f"round {round_} is not in the slot; the newest is {self.newest()}")
        views = tuple(array.view() for array in self._places[round_ % 2].arrays)
        for view in views:
            view.flags.writeable = False
        return views

    def check(self, round_: int) -> bool:
        """Return whether that round is there, whole; after a read, whether what was read was."""
        _barrier()
        words = self._open_places()[round_ % 2].words()
        _barrier()
        return round_ >= 0 and words == (round_ + 1, round_ + 1)

    def newest(self) -> int | None:
        """Return the last round that is there, whole; None if there is none."""
        seen: list[tuple[int, int]] = []
        while True:
            words = [place.words() for place in self._open_places()]
            whole = [before - 1 for before, after in words if before == after != 0]
            if whole:
                return max(whole)
            # The writer may have gone from one place to the other while they were looked at.
            if words == seen:
                return None
            seen = words

    def read_newest(self) -> tuple[int, tuple[np.ndarray, ...]]:
        """Return the last whole round and copies of its arrays; raise LookupError if there is none.

        Begins again if the writer came by meanwhile: it ends unless the writer never pauses.
        """
        while True:
            round_ = self.newest()
            if round_ is None:
                raise LookupError("no round is in the slot")
            _barrier()
            copies = tuple(array.copy() for array in self._places[round_ % 2].arrays)
            if self.check(round_):
                return round_, copies

    def _open_places(self) -> list[_Place]:
        if not self._places:
            raise ValueError("the slot is closed")
        return self._places


def lengths_of(arrays: Iterable[np.ndarray]) -> Lengths:
    """Return the types and lengths of the arrays; raise ValueError unless all are 1-D."""
    found = []
    for array in arrays:
        if array.ndim != 1:
            raise ValueError(f"an array of shape {array.shape}; expected one dimension")
        found.append((array.dtype.str, len(array)))
    return tuple(found)


def stated_lengths(file: int) -> Lengths:
    """Return the types and lengths that a slot's header states; `attach` checks the rest."""
    stated = os.pread(file, _HEADER.size + _MAX_ARRAYS * _ARRAY.size, 0)
    if len(stated) < _HEADER.size or not stated.startswith(_MAGIC):
        raise ValueError("not a slot: it does not start like one")
    _, _, num_arrays = _HEADER.unpack_from(stated)
    pairs = list(_ARRAY.iter_unpack(stated[_HEADER.size :][: num_arrays * _ARRAY.size]))
    if num_arrays > _MAX_ARRAYS or len(pairs) < num_arrays:
        raise ValueError(f"a slot of {num_arrays} arrays; expected {_MAX_ARRAYS} at most")
    return _checked([(kind.rstrip(b"\0").decode("ascii"), length) for kind, length in pairs])


def payload_bytes(lengths: Lengths) -> int:
    """Return the bytes of one round's arrays, end to end."""
    return sum(np.dtype(kind).itemsize * length for kind, length in lengths)


def split(payload: np.ndarray, lengths: Lengths) -> list[np.ndarray]:
    """Return the arrays that lie end to end in bytes; raise ValueError unless they fit exactly."""
    if len(payload) != payload_bytes(lengths):
        raise ValueError(f"{len(payload)} bytes; expected {payload_bytes(lengths)}")
    arrays, at = [], 0
    for name, length in lengths:
        kind = np.dtype(name)
        arrays.append(payload[at : at + length * kind.itemsize].view(kind))
        at += length * kind.itemsize
    return arrays


def _checked(lengths: Sequence[tuple[str, int]]) -> Lengths:
    """Return lengths with types as numpy spells them; raise ValueError if no slot can have them."""
    if len(lengths) > _MAX_ARRAYS:
        raise ValueError(f"{len(lengths)} arrays in a slot; expected {_MAX_ARRAYS} at most")
    found = []
    for name, length in lengths:
        kind = np.dtype(name)
        if kind.kind not in "biuf" or length < 0:
            raise ValueError(f"{length} times {name} in a slot; expected 0 or more numbers")
        found.append((kind.str, length))
    return tuple(found)


def _check(file: int, lengths: Lengths) -> None:
    """Raise ValueError unless the file is a slot for arrays of those lengths, of a sealed size."""
    if not stat.S_ISREG(os.fstat(file).st_mode):
        raise ValueError("not a slot: no file of memory")
    stated = os.pread(file, _HEADER.size + _MAX_ARRAYS * _ARRAY.size, 0)
    if len(stated) < _HEADER.size or not stated.startswith(_MAGIC):
        raise ValueError("not a slot: it does not start like one")
    _, version, num_arrays = _HEADER.unpack_from(stated)
    if version != _VERSION:
        raise ValueError(f"a slot of version {version}; expected {_VERSION}")
    if not stated.startswith(_header(lengths)):
        raise ValueError(f"a slot for {_told(stated, num_arrays)}; expected {lengths}")
    size = os.fstat(file).st_size
    if size < _bytes(lengths):
        raise ValueError(f"a slot of {size} bytes; expected {_bytes(lengths)}")
    try:
        seals = fcntl.fcntl(file, fcntl.F_GET_SEALS)
    except OSError:
        seals = 0
    if seals & _SEALS != _SEALS:
        raise ValueError("not a slot: its size is not sealed")


def _refused(size: int, error: OSError) -> MachineError:
    return MachineError(
        f"{size} bytes of shared memory: {error.strerror}; free some memory or raise the limits "
        "(ulimit -a)"
    )


def _told(stated: bytes, num_arrays: int) -> object:
    """Return the lengths that a header states, for an error; the header may hold anything."""
    if len(stated) < _HEADER.size + num_arrays * _ARRAY.size:
        return f"{num_arrays} arrays"
    pairs = _ARRAY.iter_unpack(stated[_HEADER.size :][: num_arrays * _ARRAY.size])
    return tuple((kind.rstrip(b"\0").decode("ascii", "replace"), n) for kind, n in pairs)


def _header(lengths: Lengths) -> bytes:
    pairs = [_ARRAY.pack(kind.encode("ascii"), length) for kind, length in lengths]
    return _HEADER.pack(_MAGIC, _VERSION, len(lengths)) + b"".join(pairs)


def _lines(size: int) -> int:
    """Return the size rounded up to a whole number of cache lines."""
    return -(-size // _LINE) * _LINE


def _header_bytes(lengths: Lengths) -> int:
    return _lines(_HEADER.size + len(lengths) * _ARRAY.size)


def _place_bytes(lengths: Lengths) -> int:
    payload = sum(_lines(np.dtype(kind).itemsize * length) for kind, length in lengths)
    return _LINE + payload + _LINE


def _bytes(lengths: Lengths) -> int:
    return _header_bytes(lengths) + 2 * _place_bytes(lengths)


def _barrier() -> None:
    """Keep what was read or written before in front of what comes after, as other processes see it.

    x86 hardly reorders, ARM does. Taking a lock orders what follows, freeing it what precedes; the
    second time keeps the two from passing each other.
    """
    # A lock of its own: one that another thread holds during a fork would stay held in the child.
    lock = threading.Lock()
    for _ in range(2):
        with lock:
            pass
