"""Parts from outside the package in a configuration: by reference, entry point, or as objects."""

from __future__ import annotations

import os
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.foreign import FOLDER

from manege import plugins
from manege.config import OwnNetworks, RunConfig, resolve, stored, to_yaml
from manege.config.settings import flags_of
from manege.errors import ConfigError


def _config(preset: str | None = "paper-dc", **flags: Any) -> RunConfig:
    dotted = {key.replace("__", "."): value for key, value in flags.items()}
    return resolve(preset=preset, flags={"data.source": "digits", "rounds": 1, **dotted})


def test_a_reference_and_its_parameters_come_back_from_yaml(tmp_path):
    config = _config(networks__kind="mine:Pair", networks__width=64, training__loss="mine.of:loss")
    assert isinstance(config.networks, OwnNetworks)
    assert config.networks.parameters == {"width": 64}
    assert config.references() == {"networks.kind": "mine:Pair", "training.loss": "mine.of:loss"}
    config = config.model_copy(update={"plugins": {"mine": "a" * 64}})
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    assert stored(tmp_path / "config.yaml") == config


def test_an_entry_points_name_becomes_its_reference(monkeypatch):
    def entry_points(group: str, name: str) -> list[EntryPoint]:
        assert group == "manege.plugins"
        return [EntryPoint(name, f"theirs:{name}", group)] if name in ("pair", "loss") else []

    monkeypatch.setattr(plugins, "entry_points", entry_points)
    config = _config(networks__kind="pair", training__loss="loss")
    assert config.references() == {"networks.kind": "theirs:pair", "training.loss": "theirs:loss"}
    with pytest.raises(ConfigError, match="found 'los', expected one of bce, "):
        _config(training__loss="los")


def test_networks_of_ones_own_are_judged_by_their_own_discriminator():
    """The default preset's critic sees features, and would have left it unused."""
    assert _config(None).preset == "modern"
    config = _config(None, networks__kind="mine:Pair")
    assert (config.preset, config.critic.kind) == ("modern-pixels", "pixels")
    config = _config(None, networks__kind="mine:Pair", critic__kind="features")
    assert (config.preset, config.critic.kind) == ("modern", "features")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"method": "conditional"}, "mine:Pair is not told labels, and the method is conditional"),
        ({"training__constraint__kind": "spectral"}, "spectral norms are put on the layers of bui"),
        ({"networks__width": object()}, "networks.width: found object, expected what YAML can"),
    ],
)
def test_what_own_networks_cannot_do_is_refused(flags, expected):
    with pytest.raises(ConfigError, match=expected):
        _config(networks__kind="mine:Pair", **flags)


def test_a_grids_objectives_refuse_an_own_loss_as_any_other():
    with pytest.raises(ConfigError, match="the loss is mine:loss; set training"):
        _config(
            None, method="cellular", cellular__objectives=["minimax"], training__loss="mine:loss"
        )


def test_objects_are_named_by_their_references(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    import foreign_parts

    def given(**settings):
        return _config(**{key.replace(".", "__"): one for key, one in flags_of(settings).items()})

    config = given(networks={"kind": foreign_parts.Pair, "width": 8}, loss=foreign_parts.paired)
    assert config.references() == {
        "networks.kind": "foreign_parts:Pair",
        "training.loss": "foreign_parts:paired",
    }
    assert config.networks == given(networks=foreign_parts.Pair, networks__width=8).networks
    with pytest.raises(ConfigError, match="<lambda> has no name at the top of a module"):
        given(loss=lambda real: real)


def test_a_source_that_has_changed_since_it_was_imported_is_refused(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "changing_part.py"
    file.write_text("thing = 1\n")
    known = plugins.source_digests({"training.loss": "changing_part:thing"})
    plugins.check_sources({"training.loss": "changing_part:thing"}, known, "put it back")
    with pytest.raises(
        ConfigError, match=r"SHA-256 of its source is .*, expected 000000000000…; p"
    ):
        plugins.check_sources(
            {"training.loss": "changing_part:thing"}, {"changing_part": "0" * 64}, "put it back"
        )
    file.write_text("thing = 22\n")
    with pytest.raises(ConfigError, match="has changed since this process imported it; reload"):
        plugins.source_digests({"training.loss": "changing_part:thing"})
    del sys.modules["changing_part"]


def test_processes_that_a_run_starts_get_what_was_put_on_the_path(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "named"))
    monkeypatch.syspath_prepend(tmp_path / "added")
    folders = plugins.environment()["PYTHONPATH"].split(os.pathsep)
    assert folders.index(str(tmp_path / "added")) < folders.index(str(tmp_path / "named"))
    assert not any(Path(folder).is_relative_to(sys.prefix) for folder in folders)
