"""Reads the pickles of CIFAR: dicts of bytes, numbers, lists and arrays of bytes, nothing else.

A pickle is a program, and whoever wrote it chooses what it calls. So its instructions are checked
before any is carried out: only those that Python 2 used for these files, and only as many as such
a file can need. Then an unpickler runs them that knows the three names in these files, and gives
for each a stand-in of ours: not even numpy is called by what a file says.

The binary archives hold the same pictures without any pickle, and are what we download. This stays
because the python ones are what most people have, and what our own tests share: to refuse them
would make everybody fetch 170 MB again for what lies on the disk.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from manege.data.arrays import read_file
from manege.data.labels import printable
from manege.errors import DataError

_TEXTS = frozenset({"SHORT_BINSTRING", "BINSTRING"})
_PUTS = frozenset({"BINPUT", "LONG_BINPUT"})
_GETS = frozenset({"BINGET", "LONG_BINGET"})
_PLAIN = frozenset(
    {"PROTO", "MARK", "NONE", "NEWFALSE", "BININT", "BININT1", "BININT2", "STOP"}
    | {"APPEND", "APPENDS", "SETITEM", "SETITEMS"}
)
_BUILDING = frozenset(
    {"EMPTY_DICT", "EMPTY_LIST", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"}
    | {"GLOBAL", "REDUCE", "BUILD"}
)
_MOST_INSTRUCTIONS = 1_000_000
"""The most instructions: 50,000 pictures with a name and two labels each take 200,000."""
_MOST_BUILDING = 64
"""The most that may build or call something: an official file has 17. It also bounds nesting."""
_SHOWN = 60
_AGAIN = "get the file again"


class _Refused(Exception):
    """Raised for a pickle that is none of those we read; the message is the reason, on one line."""


def read_pickle(path: Path, cap: int) -> dict[bytes, Any]:
    """Return what the file holds: bytes, ints, lists, and arrays of bytes in two dimensions.

    Args:
        path: written by Python 2, protocol 2.
        cap: no file with more bytes is read.
    """
    content = read_file(path, cap)
    try:
        _look_through(content)
        value = _Unpickler(io.BytesIO(content), encoding="bytes").load()
        if type(value) is not dict or not all(type(key) is bytes for key in value):
            raise _Refused("its content is no dict of named values")
        return {
            key: one.content() if isinstance(one, _Array) else one for key, one in value.items()
        }
    except _Refused as error:
        raise DataError(f"{path}: not a CIFAR file: {error}; {_AGAIN}") from error
    except MemoryError:
        raise
    # Random bytes make the unpickler throw whatever their meaning comes to.
    except Exception as error:
        reason = printable(" ".join(str(error).split()))[:_SHOWN] or type(error).__name__
        raise DataError(f"{path}: damaged, or not a CIFAR file ({reason}); {_AGAIN}") from error


def _look_through(content: bytes) -> None:
    """Refuse what could exhaust memory, stack or time, before a single instruction is run."""
    building = 0
    texts: set[int] = set()
    was_text = False
    place = None
    for count, instruction in enumerate(pickletools.genops(content), start=1):
        opcode, argument, place = instruction
        name = opcode.name
        if count > _MOST_INSTRUCTIONS:
            raise _Refused(f"more than {_MOST_INSTRUCTIONS:,} instructions")
        if name in _BUILDING:
            building += 1
            if building > _MOST_BUILDING:
                raise _Refused(f"more than {_MOST_BUILDING} lists, tuples, dicts and calls")
        elif name in _PUTS:
            # The unpickler makes a table as long as the largest number.
            if not isinstance(argument, int) or argument > count:
                raise _Refused(f"it remembers value {argument} of {count}")
            if was_text:
                texts.add(argument)
            else:
                texts.discard(argument)
        elif name in _GETS:
            # Texts alone may come twice: a tuple of tuples of ... in small is endless to hash.
            if argument not in texts:
                raise _Refused("it repeats a value that is no text")
        elif name not in _TEXTS and name not in _PLAIN:
            raise _Refused(f"it has the instruction {name}")
        was_text = name in _TEXTS
    if place != len(content) - 1:
        raise _Refused(f"it ends at byte {place} of {len(content)}")


class _Unpickler(pickle.Unpickler):
    """An unpickler that knows only the admitted names, each as a stand-in."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the stand-in of an admitted name; refuse any other."""
        admitted = _ADMITTED.get((module, name))
        if admitted is None:
            raise _Refused(f"it asks for {printable(f'{module}.{name}')[:_SHOWN]}")
        return admitted


class _Name:
    """The stand-in of a name that a pickle may mention."""

    # No place for an attribute: a pickle could put its own there for whoever reads next.
    __slots__ = ()

    def __setstate__(self, state: object) -> NoReturn:
        raise _Refused("it changes what is not its own")


class _Reconstruct(_Name):
    """Stands for numpy's function that makes an empty array, to be filled by its state."""

    __slots__ = ()

    def __call__(self, kind: object, shape: object, code: object) -> _Array:
        if kind is not _NDARRAY or shape != (0,) or code != b"b":
            raise _Refused("an array that does not begin as numpy's do")
        return _Array()


class _Dtype(_Name):
    """Stands for numpy's dtype, and for the one that is admitted: unsigned bytes."""

    __slots__ = ()

    def __call__(self, code: object, align: object, copy: object) -> _Bytes:
        if (code, align, copy) != (b"u1", 0, 1):
            raise _Refused("an array of other than unsigned bytes")
        return _Bytes()


class _Bytes:
    """The stand-in of the dtype of unsigned bytes."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        if state != (3, b"|", None, None, None, -1, -1, 0):
            raise _Refused("an array of other than unsigned bytes")


class _Array:
    """The stand-in of an array, whose state is checked before an array is made of it."""

    __slots__ = ("_content", "_shape")

    def __init__(self) -> None:
        self._shape = (0, 0)
        self._content = b""

    def __setstate__(self, state: object) -> None:
        match state:
            case (1, (int() as rows, int() as columns), _Bytes(), False, bytes() as content):
                pass
            case _:
                raise _Refused("an array of other than rows of unsigned bytes")
        # No number is taken at its word: the bytes must be there, so an array is never larger
        # than its file.
        if rows < 1 or columns < 1 or rows * columns != len(content):
            raise _Refused(f"an array of {rows}x{columns} with {len(content)} bytes")
        self._shape = (rows, columns)
        self._content = content

    def content(self) -> npt.NDArray[np.uint8]:
        """Return the array, which cannot be written to."""
        if not self._content:
            raise _Refused("an array without content")
        return np.frombuffer(self._content, dtype=np.uint8).reshape(self._shape)


_NDARRAY = _Name()
_ADMITTED: dict[tuple[str, str], _Name] = {
    ("numpy.core.multiarray", "_reconstruct"): _Reconstruct(),
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _Dtype(),
}
