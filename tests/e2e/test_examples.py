"""The examples: notebooks as they stand in a real kernel, observers with a stand-in client."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import manege
from tests.helpers.tiny import TINY

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NOTEBOOKS = ("own_folder", "paper_grid", "own_parts")


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MANEGE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("IPYTHONDIR", str(tmp_path_factory.mktemp("ipython")))
        patch.delenv("MANEGE_DATA", raising=False)
        yield


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_kept_without_outputs(name):
    book = json.loads((EXAMPLES / f"{name}.ipynb").read_text())
    cells = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert cells
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_as_it_stands(name, tmp_path):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    book = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(book, timeout=600, kernel_name="python3", resources=where).execute()
    shown = [
        output["data"]["text/html"]
        for cell in book.cells
        for output in cell.get("outputs", [])
        if "text/html" in output.get("data", {})
    ]
    # The display of a run is one output, changed in place; then come a run and its samples.
    assert "finished" in shown[0]
    assert any("data:image/png;base64," in html for html in shown)
    assert not any("<script" in html for html in shown)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_the_stop_button_saves_and_the_next_cell_goes_on(tmp_path):
    manager = pytest.importorskip("jupyter_client").KernelManager(kernel_name="python3")
    manager.start_kernel(cwd=str(tmp_path))
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=120)
        small = 'preset="paper", networks="mlp", hidden=16, batch=40, classes=["3"], workers=1'
        client.execute(
            f'import manege; run = manege.train("digits", rounds=10**6, {small}); print(run)'
        )
        events = tmp_path / "runs/0001-digits-per-class/events.jsonl"
        deadline = time.monotonic() + 120
        while not (events.exists() and '"round"' in events.read_text()):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        manager.interrupt_kernel()
        assert "stopped)" in _printed(client)
        client.execute("print(run.resume(rounds=max(run.outcome.rounds.values()) + 1))")
        assert "finished)" in _printed(client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def _printed(client: Any) -> str:
    """What a cell prints until something ends with a state."""
    text = ""
    while ")" not in text:
        message = client.get_iopub_msg(timeout=120)
        assert message["msg_type"] != "error", message["content"]
        if message["msg_type"] == "stream" and message["content"]["name"] == "stdout":
            text += message["content"]["text"]
    return text


class Client(ModuleType):
    """Stands in for wandb and for mlflow: writes down what is called, and with what."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def called(*args: Any, **options: Any) -> Client:
            self.calls.append((name, args, options))
            return self

        return called

    def named(self, name: str) -> list[tuple[Any, ...]]:
        return [args for called, args, _ in self.calls if called == name]


@pytest.fixture
def client(monkeypatch):
    def put(name: str) -> Client:
        made = Client(name)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    return put


def _observer(name: str, kind: str, argument: str) -> manege.Observer:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = getattr(module, kind)(argument)
    assert isinstance(made, manege.Observer)
    return made


SMALL = {**TINY, "rounds": 2, "classes": ["3"], "limit_per_class": 40, "sheet_every": 1}


def test_a_run_is_sent_to_weights_and_biases(client, tmp_path, capsys):
    wandb = client("wandb")
    observer = _observer("wandb_observer", "WandbObserver", "pets")
    manege.train("digits", out=tmp_path / "run", observers=[observer], **SMALL)
    (begun,) = [options for name, _, options in wandb.calls if name == "init"]
    assert (begun["project"], begun["name"]) == ("pets", "run")
    assert begun["config"]["data"]["classes"] == ["3"]
    logged = [set(args[0]) for args in wandb.named("log")]
    assert {"3/discriminator", "3/generator"} in logged
    assert {"3/samples"} in logged
    assert wandb.calls[-1][0] == "finish"
    assert "warning" not in capsys.readouterr().err


def test_a_run_is_sent_to_mlflow(client, tmp_path, capsys):
    mlflow = client("mlflow")
    observer = _observer("mlflow_observer", "MlflowObserver", "pets")
    manege.train("digits", out=tmp_path / "run", observers=[observer], **SMALL)
    assert mlflow.named("set_experiment") == [("pets",)]
    assert {"3/discriminator", "3/generator"} == {args[0] for args in mlflow.named("log_metric")}
    assert [args[1:] for args in mlflow.named("log_artifact")] == [(), ("samples",), ("samples",)]
    assert mlflow.calls[-1][0] == "end_run"
    assert "warning" not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["wandb_observer", "mlflow_observer"])
def test_an_adapter_has_at_most_thirty_lines(name):
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 30


def test_a_client_that_fails_is_said_once_and_hurts_nothing(client, tmp_path, capsys, monkeypatch):
    wandb = client("wandb")
    observer = _observer("wandb_observer", "WandbObserver", "pets")
    monkeypatch.setattr(wandb, "init", lambda **options: 1 / 0, raising=False)
    run = manege.train("digits", out=tmp_path / "run", observers=[observer], **SMALL)
    assert run.state == "finished"
    said = [line for line in capsys.readouterr().err.splitlines() if "WandbObserver" in line]
    assert len(said) == 1
