"""Describe the machine and the versions that numbers were measured with."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from manege import machine
from manege.errors import MachineError, field
from manege.version import __version__

_PACKAGES = ("torch", "numpy", "mpi4py")


def surroundings(runtime: str) -> dict[str, Any]:
    """Return what must be the same for numbers to compare; MachineError when MPI is missing."""
    found: dict[str, Any] = {
        "cpu": machine.cpu(),
        "cores": machine.cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "manege": __version__,
        "python": platform.python_version(),
        **{name: version for name in _PACKAGES if (version := _version(name)) is not None},
    }
    if runtime == "mpi":
        found["mpi"] = _mpi()
    return found


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _mpi() -> str:
    """Return the version that mpiexec reports."""
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    mpiexec = shutil.which("mpiexec", path=beside)
    if mpiexec is None or _version("mpi4py") is None:
        missing = "mpiexec" if mpiexec is None else "mpi4py"
        raise MachineError(
            f"{field('runtime')} mpi: there is no {missing}; install it: pip install 'manege[mpi]'"
        )
    told = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, check=False)
    return next(iter((told.stdout or told.stderr).splitlines()), "unknown").strip()
