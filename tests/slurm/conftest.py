"""A real Slurm of two nodes on this machine; skipped where it is not installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NEEDED = ("sbatch", "slurmctld", "slurmd", "munged")


@pytest.fixture(scope="session")
def slurm() -> Iterator[Path]:
    """Its configuration, named in the environment too."""
    missing = [name for name in NEEDED if shutil.which(name, path=_path()) is None]
    if missing:
        pytest.skip(f"no {missing[0]} on the path: `make slurm-setup` installs Slurm")
    if os.geteuid() != 0:
        pytest.skip("not root, as which Slurm's daemons have to be started")
    # Not below pytest's own folder: the daemons' users could not look into that.
    parent = Path(tempfile.mkdtemp(prefix="manege-slurm-"))
    parent.chmod(0o755)
    folder = parent / "slurm"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", _path())
        for name in [name for name in os.environ if name.startswith("SLURM_")]:
            patch.delenv(name)
        try:
            subprocess.run([HERE / "up", folder, "2"], check=True, timeout=60)
            patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
            yield folder / "slurm.conf"
        finally:
            subprocess.run([HERE / "down", folder], check=False, timeout=60)
            shutil.rmtree(parent, ignore_errors=True)


def _path() -> str:
    """Daemons lie where users do not look."""
    return f"{os.environ['PATH']}{os.pathsep}/usr/sbin{os.pathsep}/sbin"
