from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manege.data.labels import check_label, choose, listed, natural, nearest, printable
from manege.errors import DataError


def test_two_comes_before_ten() -> None:
    assert natural(["10", "2", "1"]) == ("1", "2", "10")
    assert natural(["img12", "IMG2", "img1"]) == ("img1", "IMG2", "img12")


@given(st.sets(st.text()))
def test_natural_order_loses_nothing_and_is_stable(names: set[str]) -> None:
    ordered = natural(names)
    assert set(ordered) == names
    assert natural(reversed(ordered)) == ordered


def test_chosen_labels_keep_the_datasets_order() -> None:
    assert choose(("1", "2", "10"), ("10", "1"), "d") == ("1", "10")
    assert choose(("1", "2"), None, "d") == ("1", "2")


def test_an_unknown_label_is_named_with_the_nearest() -> None:
    with pytest.raises(DataError, match=r"mnist has no 'sneker'; nearest is 'sneaker'; choose"):
        choose(("bag", "sneaker"), ("sneker", "bag"), "mnist")
    with pytest.raises(DataError, match=r"has no '17'; choose among bag, coat$"):
        choose(("bag", "coat"), ("17",), "d")


def test_long_lists_are_cut() -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed([str(number) for number in range(100)]).endswith("11 and 88 more")


def test_nearest_ignores_case() -> None:
    assert nearest("MNIST", ["digits", "mnist"]) == "mnist"
    assert nearest("zzzz", ["digits", "mnist"]) is None


@given(st.text())
def test_anything_can_be_printed_on_one_line(text: str) -> None:
    shown = printable(text)
    shown.encode()
    assert len(shown.splitlines()) <= 1


@pytest.mark.parametrize(
    "label", ["", " ", "..", ".", "a/b", "a\\b", "a\nb", "\x00", "\udcff", "x" * 1001]
)
def test_a_label_that_cannot_name_a_folder_is_refused(label: str) -> None:
    with pytest.raises(DataError, match="cannot be a label"):
        check_label(label, "file.npz")


@pytest.mark.parametrize("label", ["7", "t-shirt", "naïve café", "猫", "a.b", " a ", "x" * 1000])
def test_ordinary_labels_pass(label: str) -> None:
    check_label(label, "file.npz")
