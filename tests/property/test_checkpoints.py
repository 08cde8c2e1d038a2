"""What holds for every checkpoint: it comes back bit for bit, in a folder of its own."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from manege.runs import RunDir, cell_folder
from manege.runs.tensors import pack, unpack

DTYPES = ("float16", "float32", "float64", "int8", "int64", "uint8", "uint64", "bool")
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0))
)
TENSORS = st.dictionaries(NAMES.filter(lambda name: name != "__metadata__"), ARRAYS, max_size=4)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
META = st.dictionaries(st.text(), JSON, max_size=3)


def same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
    return sorted(found) == sorted(expected) and all(
        found[name].dtype == array.dtype
        and found[name].shape == array.shape
        and found[name].tobytes() == array.tobytes()
        for name, array in expected.items()
    )


@given(TENSORS, META)
@settings(deadline=None, max_examples=60)
def test_what_is_packed_comes_back_bit_for_bit(tensors, meta):
    found, description = unpack(pack(tensors, meta))
    assert same(found, tensors)
    assert description == json.loads(json.dumps(meta))
    assert pack(tensors, meta) == pack(dict(reversed(tensors.items())), meta)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), TENSORS, META), max_size=5))
@settings(deadline=None, max_examples=15)
def test_after_any_commits_the_last_one_loads_and_two_files_are_kept(commits):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        RunDir.create(path, name="x", config="", command="", environment={}, data={})
        for count, (round_, step, tensors, meta) in enumerate(commits, start=1):
            run = RunDir.open(path)
            run.commit("C", identity="i", round_=round_, step=step, tensors=tensors, meta=meta)
            found = RunDir.open(path).load("C", identity="i")
            assert found is not None
            assert (found.round_, found.step, found.warnings) == (round_, step, ())
            assert same(found.tensors, tensors)
            assert found.meta == meta
            kept = list((path / "checkpoints" / cell_folder("C")).glob("*.safetensors"))
            assert len(kept) == min(count, 2)


KEYS = st.text() | st.text("abAB01._- ", max_size=8) | st.text().map(cell_folder)


@given(st.sets(KEYS, min_size=2, max_size=20))
def test_no_two_cells_share_a_folder_even_where_case_is_ignored(keys):
    assert len({cell_folder(key).casefold() for key in keys}) == len(keys)


@given(KEYS)
def test_every_folder_name_is_safe_and_plain_keys_keep_theirs(key):
    name = cell_folder(key)
    assert re.fullmatch(r"[a-z0-9_][a-z0-9._-]{0,63}", name)
    assert cell_folder(key) == name
    plain = re.fullmatch(r"[a-z0-9_][a-z0-9._-]{0,63}", key)
    assert (name == key) == (bool(plain) and not re.fullmatch(r".*-[0-9a-f]{8}", key))
