"""Run the command as one of the ranks of an MPI job; without a job this changes nothing.

Rank 0 runs the command, the others serve it; all end with its exit code.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from manege.errors import ManegeError
from manege.runtime import launch

if TYPE_CHECKING:
    from manege.runtime.mpi import World

_TRAINING = ("train", "resume")
_CRASHED = 70
_LET_SPEAK_S = 1.0
"""Seconds that other ranks wait so that rank 0 can speak before the launcher ends them all."""


def run(command: Callable[[], int]) -> None:
    """Run the command where there is no job and on a job's rank 0; serve it on all others."""
    if not _wants_job(sys.argv[1:]):
        sys.exit(command())
    try:
        world = _join()
    except ManegeError as error:
        complain(str(error))
        if _rank():
            time.sleep(_LET_SPEAK_S)
        sys.exit(error.exit_code)
    try:
        code = _serve(world) if world.rank else _lead(world, command)
    except BaseException:
        traceback.print_exc()
        sys.stderr.write(f"manege: rank {world.rank} cannot go on, and the job ends\n")
        world.abort(_CRASHED)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # Asked for an end that has come.
    world.leave(code)


def is_joined() -> bool:
    """Return whether this process is part of a job."""
    return "manege.runtime.mpi" in sys.modules and _joined() is not None


def world() -> World:
    """Return the job of this process, which was joined before the command began."""
    found = _joined()
    assert found is not None, "an MPI job is joined before its run begins"
    return found


def complain(text: str) -> None:
    """Write a line on standard error; only rank 0 does so in a job."""
    if not _rank():
        sys.stderr.write(f"manege: {text}\n")


def _lead(world: World, command: Callable[[], int]) -> int:
    from manege.runtime.transports.ranks import dismiss

    code = command()
    dismiss(world, code)
    return code


def _serve(world: World) -> int:
    from manege.runtime.agent import serve

    return serve(world)


def _wants_job(args: Sequence[str]) -> bool:
    """Return whether the command trains, under a launcher or with an MPI that was asked for."""
    verb = next((one for one in args if not one.startswith("-")), None)
    if verb not in _TRAINING or "--help" in args:
        return False
    if any(one.partition("=")[0] == "--launch" for one in args):
        return False  # It starts the ranks, and is none.
    named = [after for one, after in itertools.pairwise(args) if one == "--runtime"]
    named += [one.partition("=")[2] for one in args if one.startswith("--runtime=")]
    named = named[-1:] or [os.environ.get("MANEGE_RUNTIME", "")]
    return named == ["mpi"] or launch.rank_info(os.environ) is not None


def _join() -> World:
    from manege.runtime import mpi

    return mpi.join(launch.rank_info(os.environ))


def _joined() -> World | None:
    from manege.runtime import mpi

    return mpi.joined()


def _rank() -> int:
    info = launch.rank_info(os.environ)
    return 0 if info is None else info.rank
