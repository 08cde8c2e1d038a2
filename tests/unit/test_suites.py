"""What `make test` always shows: every verb from end to end, every fault, every method's bits."""

from __future__ import annotations

import importlib
from collections.abc import Iterable

import pytest

LEFT_OUT = {"full", "soak"}

VERBS = {
    "train": "tests.e2e.test_commands::test_training_tells_its_result_as_one_object",
    "resume": "tests.e2e.test_commands::test_training_tells_its_result_as_one_object",
    "sample": "tests.e2e.test_commands::test_every_other_command_tells_its_result_as_one_object",
    "export": "tests.e2e.test_commands::test_every_other_command_tells_its_result_as_one_object",
    "model": "tests.e2e.test_commands::test_every_other_command_tells_its_result_as_one_object",
    "data": "tests.e2e.test_commands::test_the_data_commands_tell_their_results_as_one_object",
    "evaluate": "tests.e2e.test_scores::test_a_run_is_judged_by_the_pictures_its_training_held_out",
    "compare": "tests.e2e.test_scores::test_a_comparison_is_one_object_too",
    "verdict": "tests.e2e.test_verdict::test_a_verdict_is_a_table_a_sentence_and_files",
    "report": "tests.e2e.test_report::test_a_report_is_one_file_and_figures_beside_it",
    "sweep": "tests.e2e.test_sweep::test_the_time_of_a_plan_ends_its_runs",
    "watch": "tests.e2e.test_watch::test_a_run_is_watched_from_elsewhere_and_left_alone",
    "slurm": "tests.unit.test_slurm::"
    "test_a_script_asks_for_what_was_said_and_is_all_that_is_printed",
    "bench": "tests.e2e.test_scaling::test_a_bench_ends_in_tables_and_a_plot",
}

FAULTS = {
    "SIGKILL of a trainer": "tests.recovery.test_local::"
    "test_a_trainer_killed_inside_a_commit_is_started_again",
    "SIGKILL of the server": "tests.recovery.test_local::test_a_killed_server_is_replaced",
    "SIGKILL of the command": "tests.golden.test_golden::"
    "test_a_run_killed_and_resumed_comes_to_the_bits_of_one_that_was_not",
    "hang": "tests.recovery.test_local::test_trainers_that_hang_are_replaced",
    "NaN": "tests.e2e.test_failing_class::"
    "test_a_class_that_always_turns_nan_is_given_up_and_the_others_are_as_without_it",
    "full disk": "tests.recovery.test_stopping::"
    "test_a_full_disk_is_one_line_and_resume_works_after_space_is_made",
    "signal": "tests.e2e.test_commands::test_a_signal_stops_with_everything_saved",
    "damaged checkpoint": "tests.recovery.test_grid_kills::"
    "test_a_damaged_newest_checkpoint_of_a_cell_never_changes_the_result",
    "damaged cache": "tests.e2e.test_damaged_cache::test_train_and_resume_end_in_the_same_bits",
    "lost MPI rank": "tests.recovery.test_mpi::"
    "test_a_dead_trainers_and_a_lost_ranks_cells_go_to_others",
    "bad input": "tests.e2e.test_bad_input::test_bad_input_is_refused_in_one_line",
}

IN_ONE_PROCESS = "test_a_run_in_one_process_comes_to_the_recorded_bits"
BY_WORKERS = "test_two_workers_come_to_the_bits_of_one_process"
BY_RANKS = "test_three_ranks_come_to_the_bits_of_one_process"
BITS = {
    "per-class in one process": (IN_ONE_PROCESS, "modern"),
    "conditional in one process": (IN_ONE_PROCESS, "modern, conditional"),
    "single in one process": (IN_ONE_PROCESS, "modern, single"),
    "cellular in one process": (IN_ONE_PROCESS, "cellular-mustangs"),
    "per-class by workers": (BY_WORKERS, "modern"),
    "cellular by workers": (BY_WORKERS, "cellular-mustangs"),
    "per-class by ranks": (BY_RANKS, "paper-dc"),
    "cellular by ranks": (BY_RANKS, "cellular-mustangs"),
}


def _names(marks: Iterable[pytest.Mark]) -> set[str]:
    return {mark.name for mark in marks}


def _short(test: str) -> list[object]:
    """The first parameters with which `make test` runs a test; [None] if it has none."""
    place, _, name = test.partition("::")
    module = importlib.import_module(place)
    function = getattr(module, name)
    whole = getattr(module, "pytestmark", [])
    whole = whole if isinstance(whole, list) else [whole]
    marks = [*whole, *getattr(function, "pytestmark", [])]
    if _names(one for one in marks) & LEFT_OUT:
        return []
    given = [mark.args[1] for mark in marks if mark.name == "parametrize"]
    if not given:
        return [None]
    kept = [[one for one in values if not _names(_marks(one)) & LEFT_OUT] for values in given]
    return [_value(one) for one in kept[0]] if all(kept) else []


def _marks(parameters: object) -> Iterable[pytest.Mark]:
    return getattr(parameters, "marks", ())


def _value(parameters: object) -> object:
    return parameters.values[0] if hasattr(parameters, "marks") else parameters


@pytest.mark.parametrize("test", {**VERBS, **FAULTS}.values(), ids={**VERBS, **FAULTS})
def test_a_verb_or_a_fault_has_a_short_test(test: str) -> None:
    assert _short(test), f"{test} is left out of `make test`; name another one here"


@pytest.mark.parametrize(("test", "name"), BITS.values(), ids=BITS)
def test_the_recorded_bits_have_a_short_test(test: str, name: str) -> None:
    assert name in _short(f"tests.golden.test_golden::{test}")


def test_every_verb_is_named_here() -> None:
    from manege.cli.app import app

    commands = {one.name or one.callback.__name__ for one in app.registered_commands}
    assert commands | {one.name for one in app.registered_groups} == VERBS.keys()
