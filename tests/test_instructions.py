"""A part of the numeric tests under fewer vector instructions than this processor has.

Other instructions round otherwise, and training makes a visibly different network of that: what
these tests assert must hold by a margin, not by one processor's bits. All numeric tests can be run
so: set the variables of a line below and call pytest.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[1]

LEVELS = ("DEFAULT", "AVX2", "AVX512")
"""As torch calls them, each with all instructions of those before."""

# torch's own kernels, its two libraries, and numpy's.
NAMES = (
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
    "MKL_ENABLE_INSTRUCTIONS",
    "OPENBLAS_CORETYPE",
)
SETTINGS = {
    "DEFAULT": ("default", "SSE41", "SSE4_2", "Nehalem"),
    "AVX2": ("avx2", "AVX2", "AVX2", "Haswell"),
    "AVX512": ("avx512", "AVX512_CORE", "AVX512", "SkylakeX"),
}

# Of all trained things the quickest: a feature network, all scores in it, the gate of a verdict.
PART = (
    "tests/unit/metrics/test_suite.py",
    "tests/unit/metrics/test_scorer.py",
    "tests/unit/cell/test_arena.py",
    "tests/unit/verdict/test_gate.py",
)


# A setting that torch did not take would prove nothing.
INNER = """
import sys, pytest, torch
assert torch.backends.cpu.get_cpu_capability() == sys.argv[1]
sys.exit(pytest.main(sys.argv[2:]))
"""


@pytest.mark.parametrize("level", LEVELS)
def test_a_part_of_the_numeric_tests_holds_under(level: str, tmp_path: Path) -> None:
    here = torch.backends.cpu.get_cpu_capability()
    if here not in LEVELS or LEVELS.index(level) > LEVELS.index(here):
        pytest.skip(f"{level} is left out: torch has {here} here")
    if level == here:
        pytest.skip(f"{level} is left out: all tests run under it here")
    told = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--basetemp", tmp_path / "inner")
    told += ("-k", "not toys")  # Nothing is trained for them.
    done = subprocess.run(
        [sys.executable, "-c", INNER, level, *told, *PART],
        cwd=ROOT,
        env={**os.environ, **dict(zip(NAMES, SETTINGS[level], strict=True))},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
