"""Paths below a folder, whatever names and links would make of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from manege.errors import ConfigError, MachineError
from manege.files import below, write_aside


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home" / "a").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    return tmp_path / "home"


@pytest.mark.parametrize(
    "names", [("b",), ("a", "b"), ("a/b",), ("..hidden",), ("a", "..", "b"), (" ",), ("x" * 200,)]
)
def test_names_in_the_folder_are_paths_below_it(names: tuple[str, ...], home: Path) -> None:
    assert below(home, *names) == home.joinpath(*names)


@pytest.mark.parametrize(
    "names",
    [
        *[(), ("",), (".",), ("..",), ("/",), ("/x",), ("", "/x"), ("a", ".."), ("../home2",)],
        *[("a", "../../x"), ("../elsewhere/x",), ("a\0b",), ("\ud800",)],
    ],
)
def test_names_that_lead_out_are_refused(names: tuple[str, ...], home: Path) -> None:
    with pytest.raises(ConfigError, match="expected a place below") as caught:
        below(home, *names)
    assert str(caught.value).isprintable()


def test_links_that_lead_out_are_refused_and_others_are_not(home: Path) -> None:
    (home / "out").symlink_to(home.parent / "elsewhere")
    (home / "within").symlink_to(home / "a")
    (home / "round").symlink_to(home / "round")
    (home / "a" / "file").symlink_to(home.parent / "elsewhere" / "new")
    for names in (("out",), ("out", "x"), ("a", "file"), ("within", "file"), ("round", "x")):
        with pytest.raises(ConfigError, match="expected a place below"):
            below(home, *names)
    assert below(home, "within", "x") == home / "within" / "x"


def test_the_folder_itself_may_be_a_link(home: Path) -> None:
    link = home.parent / "link"
    link.symlink_to(home)
    assert below(link, "a", "x") == link / "a" / "x"


def test_what_is_written_aside_follows_no_link(home: Path) -> None:
    precious = home.parent / "elsewhere" / "precious"
    precious.write_text("old")
    (home / ".x.tmp").symlink_to(precious)
    with pytest.raises(MachineError):
        write_aside(home / ".x.tmp", b"new", blame=home / "x")
    assert precious.read_text() == "old"
