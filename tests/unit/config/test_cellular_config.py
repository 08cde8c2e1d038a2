"""The grid's part of the configuration: where it comes from, and what is refused."""

from __future__ import annotations

import hashlib
import json

import pytest
from pydantic import ValidationError

from manege.config import (
    ALL,
    PRESETS,
    Activation,
    Fitness,
    FiveCells,
    Isolated,
    LossName,
    MethodName,
    MlpNetworks,
    MutationPerRound,
    NineCells,
    Objective,
    Opponents,
    R1Constraint,
    Replacement,
    Ring,
    RunConfig,
    amended,
    partition,
    resolve,
    to_yaml,
)
from manege.errors import ConfigError

DIGITS = {"data.source": "digits"}
GRID = DIGITS | {"method": "cellular"}


def _grid(*sets: str, **flags: object) -> RunConfig:
    return resolve(flags=GRID | flags, sets=sets)


def _refusal(*sets: str, **flags: object) -> str:
    """The one line it is refused with."""
    with pytest.raises(ConfigError) as caught:
        resolve(flags=GRID | {key.replace("__", "."): v for key, v in flags.items()}, sets=sets)
    told = str(caught.value)
    assert "\n" not in told
    return told.removeprefix("configuration: ")


# Where it comes from.


def test_a_grid_is_table_i_unless_told_otherwise():
    config = _grid()
    grid = config.cellular
    assert (config.preset, config.rounds) == ("cellular-paper", 200)
    assert config.networks == MlpNetworks(latent=64, hidden=256, activation=Activation.TANH)
    training = config.training
    assert (training.loss, training.batch) == (LossName.BCE, 100)
    optimiser = training.optimiser
    assert (optimiser.generator_lr, optimiser.discriminator_lr) == (2e-4, 2e-4)
    assert (optimiser.beta1, optimiser.beta2) == (0.5, 0.999)
    assert grid is not None
    assert (grid.rows, grid.columns, grid.neighbourhood) == (3, 3, FiveCells())
    assert (grid.population, grid.tournament, grid.skip) == (1, 2, 1)
    assert (grid.fitness, grid.fitness_samples) == (Fitness.AVERAGE, 1000)
    assert grid.mutation == MutationPerRound(scale=1e-4, probability=0.5)
    assert (grid.objectives, grid.opponents) == ((), Opponents.SELECTED)
    assert (grid.replacement, grid.data_fraction) == (Replacement.STRICT, 1.0)
    mixture = grid.mixture
    assert (mixture.samples, mixture.scale, mixture.steps) == (1000, 0.01, 100)
    assert (mixture.final_steps, mixture.final_samples) == (1000, 10_000)


def test_mustangs_is_the_same_with_all_three_objectives():
    mustangs = resolve(preset="cellular-mustangs", flags=DIGITS)
    assert mustangs.method is MethodName.CELLULAR
    assert mustangs.cellular is not None
    assert set(mustangs.cellular.objectives) == set(Objective)
    paper = amended(mustangs, {"preset": "cellular-paper", "cellular.objectives": []})
    assert paper == resolve(preset="cellular-paper", flags=DIGITS)


def test_modern_is_what_was_measured():
    config = resolve(preset="cellular-modern", flags=DIGITS)
    training, grid = config.training, config.cellular
    assert config.networks == MlpNetworks(activation=Activation.LEAKY_RELU)
    assert (training.batch, training.batches_per_round, training.attempts) == (64, 500, 3)
    assert training.constraint == R1Constraint(gamma=0.5)
    optimiser = training.optimiser
    assert (optimiser.generator_lr, optimiser.discriminator_lr) == (2e-3, 2e-3)
    assert (optimiser.beta1, optimiser.beta2) == (0.0, 0.99)
    assert grid is not None
    assert (grid.skip, grid.fitness_samples) == (0, 256)
    assert grid.replacement is Replacement.ALWAYS


@pytest.mark.parametrize("preset", [name for name in PRESETS if name.startswith("cellular")])
@pytest.mark.parametrize("method", ["single", "per-class", "conditional"])
def test_a_control_is_the_preset_without_its_grid(preset, method):
    grid, control = (
        resolve(preset=preset, flags=DIGITS | {"method": name}) for name in ("cellular", method)
    )
    assert control.cellular is None
    assert (control.networks, control.training) == (grid.networks, grid.training)


@pytest.mark.parametrize(
    "sets",
    [
        ["cellular.neighbourhood.kind=nine", "cellular.mutation.kind=none"],
        ["cellular.neighbourhood={kind: custom, offsets: [[0, 2], [0, -2]]}"],
        ["cellular.changes=[{from_round: 3, neighbourhood: {kind: ring, radius: 2}}]"],
        ["cellular.mutation={kind: batch, scale: 0.5}", "cellular.mixture.metric=is"],
        ["cellular.objectives=[minimax, least-squares]", "cellular.opponents=neighbourhood"],
        ["method=single"],
    ],
)
def test_the_printed_configuration_gives_the_same_grid_back(tmp_path, sets):
    config = resolve(preset="cellular-paper", flags=DIGITS, sets=sets)
    (tmp_path / "printed.yaml").write_text(to_yaml(config))
    again = resolve(file=tmp_path / "printed.yaml")
    assert again == config
    assert again.identity() == config.identity()


@pytest.mark.parametrize(
    ("key", "value", "found"),
    [
        ("cellular.mutation.probability", "0.2", lambda grid: grid.mutation.probability),
        ("cellular.mutation.scale", "0.0002", lambda grid: grid.mutation.scale),
        ("cellular.mixture.steps", "7", lambda grid: grid.mixture.steps),
        ("cellular.skip", "3", lambda grid: grid.skip),
    ],
)
def test_one_key_of_a_grid_can_be_set_alone(key, value, found):
    """What the others are stays: the kind of mutation too, which has keys of its own."""
    grid = _grid(f"{key}={value}").cellular
    assert found(grid) == float(value)
    assert isinstance(grid.mutation, MutationPerRound)


def test_every_setting_of_the_grid_decides_the_identity():
    plain = _grid()
    for one in (
        "cellular.rows=4",
        "cellular.tournament=3",
        "cellular.neighbourhood.kind=isolated",
        "cellular.mixture.steps=7",
        "cellular.data_fraction=0.5",
    ):
        assert _grid(one).identity() != plain.identity(), one
    longer = _grid(rounds=300)
    assert longer.identity() == plain.identity()


def test_runs_without_a_grid_keep_the_identity_they_had_before_there_were_grids():
    single = resolve(preset="modern-pixels", flags=DIGITS | {"method": "single"})
    assert single.cellular is None
    parts = {"method", "seed", "threads_per_cell", "networks", "training", "score"}
    kept = single.model_dump(mode="json", include={*parts})
    kept["data"] = {"size": None, "channels": None}
    spelled = json.dumps(kept, sort_keys=True).encode()
    assert single.identity() == hashlib.sha256(spelled).hexdigest()[:16]


def test_cells_are_named_by_row_and_column_and_all_see_all_labels():
    config = _grid("cellular.rows=2", "cellular.columns=3")
    parts = partition(config, ("a", "b"))
    assert list(parts) == ["0-0", "0-1", "0-2", "1-0", "1-1", "1-2"]
    assert set(parts.values()) == {("a", "b")}


def test_a_grid_of_one_cell_is_the_cell_of_a_single_gan():
    parts = partition(_grid("cellular.rows=1", "cellular.columns=1"), ("a", "b"))
    single = resolve(flags=DIGITS | {"method": "single"})
    assert parts == partition(single, ("a", "b")) == {ALL: ("a", "b")}


# What is refused.


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("nonsense", "unknown key, expected one of rows, columns, neighbourhood,"),
        ("tournament_size", "did you mean tournament?"),
        ("mixture.final_sample", "unknown key, expected one of metric, samples,"),
        ("neighbourhood.radius", "cellular.neighbourhood.radius: unknown key"),
        ("mutation.rate", "cellular.mutation.rate: unknown key"),
    ],
)
def test_a_key_that_nothing_reads_is_refused_by_name(key, words):
    told = _refusal(f"cellular.{key}=1")
    assert f"cellular.{key}: unknown key" in told
    assert words in told


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("changes=[{from_round: 3, nonsense: 1, neighbourhood: {kind: ring}}]", "nonsense"),
        ("changes=[{from_round: 3, neighbourhood: {kind: ring, raduis: 2}}]", "raduis"),
        ("changes=[{from_round: 3, neighbourhood: {kind: rings}}]", "did you mean ring?"),
        ("changes=[{from_round: 1, neighbourhood: {kind: ring}}]", "from_round: found 1"),
        ("changes=[{from_round: 3}]", "neighbourhood: missing"),
        ("objectives=[heuristik]", "did you mean heuristic?"),
        ("objectives=[bce]", "expected one of minimax, heuristic, least-squares"),
    ],
)
def test_a_problem_inside_a_list_is_told_like_any_other(text, words):
    told = _refusal(f"cellular.{text}")
    assert told.startswith(f"cellular.{text.partition('=')[0]}")
    assert words in told


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rows=0", "cellular.rows: found 0, expected greater than or equal to 1"),
        ("population=0", "cellular.population: found 0"),
        ("tournament=0", "cellular.tournament: found 0"),
        ("skip=-1", "cellular.skip: found -1"),
        ("data_fraction=0", "cellular.data_fraction: found 0"),
        ("data_fraction=1.5", "cellular.data_fraction: found 1.5"),
        ("fitness=mean", "cellular.fitness: found 'mean', expected one of average, best, worst"),
        ("fitness_samples=1", "cellular.fitness_samples: found 1"),
        ("opponents=all", "expected one of selected, neighbourhood"),
        ("replacement=never", "expected one of strict, always"),
        ("mixture.metric=kid", "expected one of fd, is"),
        ("mixture.samples=99", "cellular.mixture.samples: found 99"),
        ("mixture.final_samples=99", "cellular.mixture.final_samples: found 99"),
        ("mixture.scale=0", "cellular.mixture.scale: found 0"),
        ("mutation={kind: round, probability: 2}", "cellular.mutation.probability: found 2"),
        ("mutation={kind: round, scale: 0}", "cellular.mutation.scale: found 0"),
        ("mutation.kind=never", "expected one of round, batch, none"),
        ("neighbourhood.kind=hexagon", "expected one of five, nine, custom, ring, isolated"),
        ("neighbourhood={kind: ring, radius: 0}", "cellular.neighbourhood.radius: found 0"),
        ("objectives=[minimax, minimax]", "objectives: one is named twice"),
        ("neighbourhood={kind: custom}", "offsets: missing"),
        ("neighbourhood={kind: custom, offsets: []}", "offsets: found []"),
        ("neighbourhood={kind: custom, offsets: [[0, 0]]}", "found [0, 0], the cell itself"),
        (
            "neighbourhood={kind: custom, offsets: [[0, 2], [0, -2], [1, 3]]}",
            "found [1, 3] without its opposite [-1, -3]",
        ),
    ],
)
def test_values_out_of_bounds_are_refused_by_name(text, words):
    assert words in _refusal(f"cellular.{text}")


def test_a_grid_has_ten_thousand_cells_at_most():
    assert _grid("cellular.rows=200", "cellular.columns=50").cellular is not None
    told = _refusal("cellular.rows=200", "cellular.columns=51")
    assert "200x51 cells, expected at most 10,000" in told


@pytest.mark.parametrize("rounds", [(3, 3), (4, 3)])
def test_changes_come_one_after_the_other(rounds):
    changes = ", ".join(f"{{from_round: {one}, neighbourhood: {{kind: ring}}}}" for one in rounds)
    assert f"from_round {list(rounds)}, expected each later" in _refusal(
        f"cellular.changes=[{changes}]"
    )


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["training.n_critic=2"], "use cellular.skip"),
        (["training.ema=0.9"], "set ema=0"),
        (["training.augment.kind=adaptive"], "augment none"),
        (["score.metric=kid"], "by cellular.mixture.metric"),
        (["score.metric=fd"], "by cellular.mixture.metric"),
        *(
            (["cellular.objectives=[minimax]", f"training.loss={loss}"], f"the loss is {loss}")
            for loss in LossName
            if loss is not LossName.BCE
        ),
        (["cellular=null"], "use preset cellular-paper"),
        (["method=single"], "only method cellular has a grid"),
        (["method=per-class"], "only method cellular has a grid"),
        (["method=conditional"], "only method cellular has a grid"),
    ],
)
def test_what_makes_no_sense_on_a_grid_is_refused(sets, words):
    more = [] if "cellular=null" in sets else ["cellular.rows=2"]
    assert words in _refusal(*more, *sets)


@pytest.mark.parametrize("loss", LossName)
def test_without_objectives_a_grid_trains_with_any_loss(loss):
    assert _grid(f"training.loss={loss}").training.loss is loss


def test_a_grid_of_another_preset_is_said_to_be_missing():
    told = _refusal(preset="paper")
    assert told == "cellular: null, and the method is cellular; use preset cellular-paper"


@pytest.mark.parametrize("section", [FiveCells(), NineCells(), Ring(), Isolated()])
def test_sections_are_frozen(section):
    with pytest.raises(ValidationError):
        section.kind = "other"
