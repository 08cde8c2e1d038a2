"""What functions from outside the package are given, and which of their answers are refused."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from tests.helpers.own_modules import OwnModules

from manege.cell.evolution import selection_of
from manege.config import CellularConfig
from manege.errors import ConfigError
from manege.metrics import Estimate
from manege.metrics.own import own_definition, own_score
from manege.topology import FIVE, own, torus

KEYS = ("0-0", "0-1", "1-0", "1-1")


@pytest.fixture
def modules(tmp_path, monkeypatch) -> Iterator[OwnModules]:
    found = OwnModules(tmp_path, monkeypatch)
    yield found
    found.forget()


def test_a_topology_is_given_keys_rows_columns_and_parameters_and_may_be_a_mapping(modules):
    modules.write(
        "links",
        """
        from manege.topology import Topology, torus

        asked = []

        def line(keys, rows, columns, ends=True):
            asked.append((keys, rows, columns, ends))
            links = {one: [] for one in reversed(keys)}
            for one, other in zip(keys, keys[1:]):
                links[one].append(other), links[other].append(one)
            return links

        def same(keys, rows, columns):
            return torus(keys, columns)
        """,
    )
    found = own("links:line", KEYS, 2, 2, {"ends": False})
    assert found.cells == KEYS
    assert found.neighbours["0-1"] == ("0-0", "1-0")
    assert own("links:same", KEYS, 2, 2, {}) == torus(KEYS, 2, FIVE)
    from links import asked  # type: ignore[import-not-found]

    assert set(asked) == {(KEYS, 2, 2, False)}


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (
            "return 1 / 0",
            r"^links:f: the topology raised ZeroDivisionError at links.py:4 \(divisio",
        ),
        ("return 7", "^links:f: the topology is int, expected a Topology or a mapping"),
        (
            "return {one: () for one in keys[1:]}",
            "3 cells, expected the 4 of the grid; look at 0-0",
        ),
        ("return {one: keys for one in keys}", "cell '0-0' hears .*; expected other cells, each o"),
        (
            "return {one: keys[:1] if one != keys[0] else () for one in keys}",
            "^links:f: cell '0-1' hears '0-0'; expected the reverse as well$",
        ),
        ("return {one: {'0-0'} for one in keys}", "cell '0-0' hears set, expected a tuple"),
        ("return {one: '' for one in keys}", "cell '0-0' hears str, expected a tuple"),
        (
            "return {one: (7,) for one in keys}",
            "cell '0-0' hears tuple, expected a tuple of other ",
        ),
        (
            "calls.append(1); return {one: () if len(calls) > 1 else tuple(x for x in keys if x != "
            "one) for one in keys}",
            "^links:f: the topology differs from call to call",
        ),
        ("return f(keys)", "links.py:4 .*missing 2 required positional"),
    ],
)
def test_a_topology_that_fails_or_makes_no_sense_is_refused_in_a_line(modules, body, told):
    modules.write("links", f"calls = []\n\ndef f(keys, rows, columns):\n    {body}\n")
    with pytest.raises(ConfigError, match=told) as caught:
        own("links:f", KEYS, 2, 2, {})
    assert "\n" not in str(caught.value)


def _selection(modules: OwnModules, body: str):
    modules.write("choose", f"def f(fitnesses, rng):\n    {body}\n")
    return selection_of(CellularConfig(selection="choose:f"))


def test_a_selection_is_given_fitnesses_of_its_own_and_the_cell_s_stream(modules):
    fitness_S = np.array([3.0, 1.0, 2.0])
    select = _selection(modules, "fitnesses.sort(); return rng.integers(3)")
    drawn = [select(fitness_S, np.random.default_rng(seed)) for seed in range(5)]
    assert drawn == [int(np.random.default_rng(seed).integers(3)) for seed in range(5)]
    assert fitness_S.tolist() == [3.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("return 3", "^choose:f: the selection returned 3, expected a whole number from 0 to 2$"),
        ("return -1", "returned -1, expected"),
        ("return 1.0", "returned 1.0, expected"),
        ("return fitnesses", r"returned ndarray of shape \(3,\), expected"),
        ("return None", "returned None, expected"),
        ("return fitnesses[9]", "the selection raised IndexError at choose.py:2"),
    ],
)
def test_a_selection_that_fails_or_picks_nobody_is_refused_in_a_line(modules, body, told):
    with pytest.raises(ConfigError, match=told):
        _selection(modules, body)(np.array([3.0, 1.0, 2.0]), np.random.default_rng(0))


def test_what_is_no_function_is_refused(modules):
    modules.write("choose", "f = 3\n")
    for refused in (
        lambda: selection_of(CellularConfig(selection="choose:f")),
        lambda: own("choose:f", KEYS, 2, 2, {}),
        lambda: own_score("choose:f", "score.metric"),
    ):
        with pytest.raises(ConfigError, match=r"choose:f is (3|no function), expected"):
            refused()


def test_a_score_that_is_a_number_gets_a_jackknife_s_interval_of_both_tables(modules):
    modules.write(
        "scores",
        '''
        def apart(drawn, real):
            """Distance of the means.

            More.
            """
            return float(drawn.mean() - real.mean())
        ''',
    )
    rng = np.random.default_rng(0)
    drawn, real = rng.normal(1, 1, (400, 1)), rng.normal(0, 2, (300, 1))
    found = own_score("scores:apart", "score.metric")(drawn, real)
    assert found.value == drawn.mean() - real.mean()
    wanted = 1.96 * (drawn.var() / 400 + real.var() / 300) ** 0.5
    assert 0.5 * wanted < found.high - found.value < 2 * wanted
    assert found.value - found.low == pytest.approx(found.high - found.value)
    assert own_definition("scores:apart")[0].startswith("Distance of the means. (source ")


def test_a_score_may_bring_an_interval_of_its_own(modules):
    modules.write(
        "scores",
        """
        from manege.metrics import Estimate

        def f(drawn, real):
            drawn[:] = 0
            return Estimate(1.0, 0.5, 2.0)
        """,
    )
    drawn = np.ones((9, 2))
    assert own_score("scores:f", "score.metric")(drawn, drawn) == Estimate(1.0, 0.5, 2.0)
    assert drawn.all()


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("return None", "^scores:f: the score is None, expected a finite number or an Estimate$"),
        ("return float('nan')", "the score is nan, expected"),
        ("return drawn", r"the score is ndarray of shape \(9, 2\), expected"),
        ("return drawn @ real", r"the score raised ValueError at scores.py:2 \(matmul"),
        ("return f.missing", "the score raised AttributeError at scores.py:2"),
    ],
)
def test_a_score_that_fails_or_is_no_number_is_refused_in_a_line(modules, body, told):
    modules.write("scores", f"def f(drawn, real):\n    {body}\n")
    with pytest.raises(ConfigError, match=told):
        own_score("scores:f", "score.metric")(np.ones((9, 2)), np.ones((9, 2)))
