"""The front door: train, go on, draw, score, judge, report, sweep, export, as functions.

Owns what a verb does; the command line only parses, calls and prints. `Run` is what training
returns: a run directory, and the same verbs as methods.
"""

from __future__ import annotations

import inspect
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from manege import machine, progress
from manege.config import RunConfig, given_yaml, resolve_both, shown, stored
from manege.config.settings import flags_of
from manege.errors import ConfigError, field
from manege.launching import Job
from manege.observer import Observer, Observers, Stopper
from manege.plugins import reference_to
from manege.runs import RunDir
from manege.runtime.coordinator import Outcome
from manege.runtime.messages import NewRun, OldRun
from manege.starting import (
    CTRL_C,
    carried,
    chosen_runtime,
    launched_again,
    launched_new,
    most_workers,
    observed,
    worker_count,
)
from manege.stopping import StopSignals
from manege.view.lines import Lines

if TYPE_CHECKING:
    from manege.evaluation import Evaluation, EvaluationOptions, Subject
    from manege.evaluation.comparison import Comparison
    from manege.evaluation.options import Scoring
    from manege.experiments.sweep import Stage
    from manege.metrics import Counting
    from manege.report.writing import Written
    from manege.sampler import Model, Samples
    from manege.verdict import Balanced, Verdict

__all__ = [
    "Run",
    "Stopper",
    "Sweep",
    "balance",
    "compare",
    "continue_run",
    "evaluate",
    "export",
    "load_model",
    "report",
    "resume",
    "sample",
    "save_model",
    "start_run",
    "sweep",
    "train",
    "verdict",
]


@dataclass(frozen=True, repr=False)
class Run:
    """A run that has finished, failed or been stopped, and what can be done with it."""

    path: Path
    config: RunConfig
    outcome: Outcome

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """Return the run in a directory, as its files tell it.

        Example:
            >>> path = manege.train("digits", rounds=2).path
            >>> run = manege.Run.open(path)
        """
        from manege.report.run import read_run

        rundir = RunDir.open(_path("path", path))
        record = read_run(rundir.path)
        cells = record.status.get("cells", {}).items()
        outcome = Outcome(
            record.state,
            {key: int(cell["round"]) for key, cell in cells},
            {key: str(cell.get("reason")) for key, cell in cells if cell["state"] == "failed"},
            sum(one["seconds"] for one in rundir.events() if one["event"] == "run_finished"),
        )
        return cls(rundir.path, stored(rundir.path / "config.yaml"), outcome)

    @property
    def state(self) -> str:
        """How it ended: finished, stopped, or failed when at least one cell did."""
        return self.outcome.state

    @property
    def model(self) -> Model:
        """The combined sampler, as the run's directory holds it now."""
        return load_model(self.path)

    def events(self) -> list[dict[str, Any]]:
        """Return what happened, line by line; `pandas.DataFrame(run.events())` is a table of it."""
        return list(RunDir.open(self.path).events())

    def resume(self, **options: Any) -> Run:
        """Go on with it; the options are those of `manege.resume`."""
        return resume(self, **options)

    def sample(self, count: int = 64, **options: Any) -> Samples:
        """Draw pictures; the options are those of `manege.sample`."""
        return sample(self, count, **options)

    def evaluate(self, data: Any = None, **options: Any) -> Evaluation:
        """Score its pictures; the options are those of `manege.evaluate`."""
        return evaluate(self, data, **options)

    def verdict(self, data: Any = None, **options: Any) -> Verdict:
        """Say whether its pictures help a classifier; the options are those of `manege.verdict`."""
        return verdict(self, data, **options)

    def report(self, out: str | Path | None = None, *, force: bool = False) -> Written:
        """Write its report, a page that opens anywhere; see `manege.report`."""
        return report(self, out, force=force)

    def export(self, out: str | Path, format: str = "folder") -> Model:
        """Write its model to a folder of its own; see `manege.export`."""
        return export(self, out, format)

    def plot(self, ax: Any = None, measure: str | None = None) -> Any:
        """Draw a measure of every cell over its rounds; return the matplotlib axes.

        Args:
            ax: the axes to draw on; new ones when None.
            measure: generator, discriminator, score, mixture, fitness, spread or diversity; what
                the run judges its cells by when None.
        """
        from manege.report.run import read_run
        from manege.view.notebook import plot_history

        return plot_history(read_run(self.path).history, ax, measure)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {self.state})"

    def _repr_html_(self) -> str:
        from manege.report.run import read_run
        from manege.view.notebook import html_of_run

        return html_of_run(read_run(self.path), self.state)


def train(
    data: Any,
    *,
    method: Any = None,
    preset: str | None = None,
    config: str | Path | None = None,
    rounds: int | None = None,
    budget: float | str | None = None,
    workers: int | str = "auto",
    runtime: str | None = None,
    out: str | Path | None = None,
    on_event: Callable[[dict[str, Any]], object] | None = None,
    observers: Iterable[Observer] = (),
    tensorboard: bool = False,
    launch: str | None = None,
    ranks: int | None = None,
    hosts: str | None = None,
    restarts: int | None = None,
    image_column: str | None = None,
    label_column: str | None = None,
    **settings: Any,
) -> Run:
    """Train on data and return the run once it ends; Ctrl-C saves it and returns it stopped.

    Args:
        data: a dataset's name, an image folder, an .npz file, `(images, labels)` arrays, a torch
            or Hugging Face dataset, a pandas frame of paths and labels, or a function of your own.
        method: per-class, single, conditional or cellular, or a method of your own.
        preset: where settings come from that are not given; see docs/settings.md.
        config: a YAML file over the preset.
        rounds: passes over each cell's pictures.
        budget: training time instead of rounds: seconds, or a text such as ``"30m"``.
        workers: processes that train at the same time; ``"auto"`` is as many as this machine has
            cores and memory for. Their number does not change the result.
        runtime: local (processes of this machine, on Linux also when None) or inline (all in this
            process). The result is the same.
        out: the run directory to make; the next free one below ``runs/`` when None.
        on_event: called with each line of events.jsonl, a dict, as it is written.
        observers: see more than events, and may stop the run: `manege.Observer`, `manege.Stopper`.
        tensorboard: also write scalars and sheets to ``tensorboard/`` in the run directory.
        launch: ``"mpiexec"`` trains on ranks of an MPI job, which it starts.
        ranks: with `launch`, how many, the coordinator's included.
        hosts: with `launch`, the machines to start them on: ``"a:2,b:2"``.
        restarts: with `launch`, how often a job that died is started again.
        image_column: the column of pictures of a dataset or frame; found when None.
        label_column: the column of labels, likewise.
        settings: any other setting, by its plain name as on the command line (``batch=64``,
            ``grid="3x3"``, ``networks="mlp"``, ``classes=["3", "8"]``) or by its key with ``__``
            for dots (``networks__hidden=32``). A function or a class of your own stands for
            itself (``loss=my_parts.my_loss``).

    Example:
        >>> run = manege.train("digits", classes=["3", "8"], rounds=2, workers=2)
        >>> run.sample(12, label="8", seed=7).save("eights.png").name
        'eights.png'
    """
    given = {"method": method, "rounds": rounds, "budget": budget, **settings}
    source = _source(data, image_column=image_column, label_column=label_column)
    flags = {"data.source": source} | flags_of(given, known=_OF_TRAIN)
    settled, on_pixels = resolve_both(
        preset=preset, file=_path_if_any("config", config), flags=flags
    )
    place = _path_if_any("out", out)
    job = Job(launch, ranks, hosts, restarts)
    job.check()
    if job.launch is not None:
        text = given_yaml(preset=preset, file=_path_if_any("config", config), flags=flags)
        with observed(on_event, observers, shown=False) as observer:
            return Run.open(
                launched_new(job, settled, text, place, workers, observer, tensorboard=tensorboard)
            )
    with observed(on_event, observers, tensorboard=tensorboard) as observer:
        return _or_stopped(
            observer,
            lambda: start_run(
                settled,
                out=place,
                observer=observer,
                on_pixels=on_pixels,
                runtime=chosen_runtime(runtime),
                workers=worker_count(workers),
            ),
        )


_OF_TRAIN = ("preset", "config", "workers", "runtime", "out", "on_event", "observers")


def resume(
    run: Run | str | Path,
    *,
    rounds: int | None = None,
    budget: float | str | None = None,
    workers: int | str = "auto",
    runtime: str | None = None,
    on_event: Callable[[dict[str, Any]], object] | None = None,
    observers: Iterable[Observer] = (),
    tensorboard: bool = False,
    launch: str | None = None,
    ranks: int | None = None,
    hosts: str | None = None,
    restarts: int | None = None,
) -> Run:
    """Go on with a run, to a new total of rounds or time (``"10m"``) when one is given.

    The other arguments, and Ctrl-C, are as for `train`. The result is bit for bit what it would
    have been without the interruption.

    Example:
        >>> run = manege.train("digits", rounds=2)
        >>> run = manege.resume(run, rounds=4)
    """
    job = Job(launch, ranks, hosts, restarts)
    job.check()
    if job.launch is not None:
        path = RunDir.open(_path_of(run)).path
        with observed(on_event, observers, shown=False) as observer:
            launched_again(*(job, path, rounds, budget, workers, observer), tensorboard=tensorboard)
        return Run.open(path)
    with observed(on_event, observers, tensorboard=tensorboard) as observer:
        return _or_stopped(
            observer,
            lambda: continue_run(
                _path_of(run),
                rounds=rounds,
                budget_s=budget,
                observer=observer,
                runtime=chosen_runtime(runtime),
                workers=worker_count(workers),
            ),
        )


def _or_stopped(observer: Observers, training: Callable[[], Run]) -> Run:
    """Return what training does; the stopped run where a stop came between its making and that."""
    try:
        return training()
    except KeyboardInterrupt as stop:
        if observer.path is None or not stop.args:  # Nothing was made, or Ctrl-C came twice.
            raise
        return Run.open(observer.path)


def sample(source: Run | Model | str | Path, count: int = 64, **options: Any) -> Samples:
    """Draw pictures from a run or a model; options are those of `Model.sample`.

    Example:
        >>> run = manege.train("digits", rounds=2)
        >>> drawn = manege.sample(run, 12, label="8", seed=7)
        >>> drawn.save("eights.png").name
        'eights.png'
    """
    return _model(source, "model").sample(count, **options)


def evaluate(
    subject: Run | Subject,
    data: Any = None,
    *,
    say: Callable[[str], None] | None = None,
    counting: Counting | None = None,
    **options: Unpack[Scoring],
) -> Evaluation:
    """Score pictures against real ones, each number with its interval.

    Args:
        subject: a run, a model, a folder or .npz file of pictures, `Samples`, or an array of
            bytes N×S×S×C.
        data: what to compare with: an array of pictures, or anything that `train` takes; a run's
            own data when None.
        say: told warnings and what takes long; standard error when None.
        counting: makes a progress display from a verb; one on standard error when None.
        options: the fields of `manege.evaluation.EvaluationOptions`: ``metrics``, ``samples``,
            ``per_class``, ``features``, ``classes``, ``reference``, ``seed`` and so on.

    Example:
        >>> run = manege.train("digits", rounds=2)
        >>> found = manege.evaluate(run, samples=200, metrics=["kid"])
        >>> found.score("kid").value >= 0
        True
    """
    from manege.evaluation import evaluate as evaluate_subject

    return evaluate_subject(
        subject.path if isinstance(subject, Run) else subject,
        _reference(data),
        _options(options),
        say=say or progress.tell,
        counting=counting or progress.counter,
    )


def compare(
    runs: Iterable[Run | str | Path],
    data: Any = None,
    *,
    say: Callable[[str], None] | None = None,
    counting: Counting | None = None,
    **options: Unpack[Scoring],
) -> Comparison:
    """Compare runs side by side: differences, scores, samples; options as for `evaluate`.

    Example:
        >>> runs = [manege.train("digits", rounds=2, seed=seed) for seed in (1, 2)]
        >>> found = manege.compare(runs, samples=200, metrics=["kid"])
        >>> found.differences["seed"]
        (1, 2)
    """
    from manege.evaluation.comparison import compare as compare_runs

    return compare_runs(
        [_path_of(run) for run in runs],
        None if data is None else _source(data),
        _options(options),
        say=say or progress.tell,
        counting=counting or progress.counter,
    )


def verdict(
    run: Run | str | Path,
    data: Any = None,
    *,
    seeds: int = 5,
    steps: int | None = None,
    gate: bool = False,
    seed: int = 0,
    workers: int | str = "auto",
    data_root: str | None = None,
    signals: Sequence[signal.Signals] = CTRL_C,
) -> Verdict:
    """Say whether a run's pictures help a classifier: use it, use it for some classes, or don't.

    Args:
        run: the run to judge.
        data: the data that it was trained on, if they lie elsewhere now.
        seeds: trainings of each arm.
        steps: gradient steps of each training; by the number of pictures when None.
        gate: train on synthetic pictures that pass the gate only.
        seed: of the pictures drawn.
        workers: trainings at the same time; ``"auto"`` is as many as there are cores.
        data_root: where named datasets lie.
        signals: those that stop it, with what is done kept: the next call goes on.

    Example:
        >>> run = manege.train("digits", limit={"3": 20}, rounds=2)
        >>> found = manege.verdict(run, seeds=2, steps=5)
        >>> found.outcome in ("use", "use-for-classes", "dont", "copies")
        True
    """
    from manege.verdict import VerdictOptions, judge
    from manege.verdict.look import VerdictObserver

    at_once = worker_count(workers) or machine.cores()
    source = None if data is None else _source(data)
    options = VerdictOptions(source, data_root, seeds, steps, gate, seed, at_once)
    with StopSignals(signals) as stop:
        over = progress.OneLine()
        look = VerdictObserver(over.tell, over.training, stop, progress.counter("drawn"))
        return judge(_path_of(run), options, look)


def report(
    runs: Run | str | Path | Sequence[Run | str | Path],
    out: str | Path | None = None,
    *,
    force: bool = False,
) -> Written:
    """Draw a run, or several side by side, as one page that opens without a network.

    Args:
        runs: a run, finished or not, or several.
        out: the page; ``report.html`` in the run when None, for several ``comparison.html``.
        force: overwrite a file that is no report.

    Example:
        >>> run = manege.train("digits", rounds=2)
        >>> page = manege.report(run).report
    """
    from manege.report import comparing, single, writing

    several = [runs] if isinstance(runs, Run | str | os.PathLike) else list(runs)
    paths = [_path_of(run) for run in several]
    places = [path.resolve() for path in paths]
    for number, place in enumerate(places):
        if place in places[:number]:
            raise ConfigError(f"report: {paths[number]} is named twice; name each run once")
    alone = len(paths) == 1
    given = _path_if_any("out", out)
    file = given or (paths[0] / "report.html" if alone else Path("comparison.html"))
    if given is not None or not alone:
        writing.check_free(file, force=force)
    return writing.write(single.report(paths[0]) if alone else comparing.compare(paths), file)


class Sweep(NamedTuple):
    """A sweep that has ended: its folder, its tables, and what failed."""

    out: Path
    files: tuple[Path, ...]
    """table.md first, then table.json and the pictures."""
    stages: tuple[Stage, ...]
    """The recipes' scores after each budget."""
    failed: tuple[str, ...]

    @property
    def table(self) -> str:
        """The table, in Markdown."""
        return self.files[0].read_text(encoding="utf-8")


def sweep(
    plan: str | Path | Mapping[str, Any],
    out: str | Path,
    *,
    jobs: int = 1,
    data_root: str | None = None,
    say: Callable[[str], None] | None = None,
    signals: Sequence[signal.Signals] = CTRL_C,
) -> Sweep:
    """Train recipes on the same classes and seeds at equal CPU time, and compare their scores.

    Args:
        plan: a YAML file, or what it would hold; see docs/sweep.md.
        out: the folder of the sweep; a sweep that was stopped goes on there.
        jobs: runs at the same time, a process each.
        data_root: where named datasets lie.
        say: told what goes on; standard error when None.
        signals: those that stop it: KeyboardInterrupt then says that all is saved.

    Example:
        >>> plan = {"data": "digits", "classes": ["3", "8"], "seeds": [1], "budget_s": 1,
        ...         "samples": 20, "recipes": {"small": {"networks.kind": "mlp"}}}
        >>> found = manege.sweep(plan, "sweep")
        >>> found.failed
        ()
    """
    from manege.experiments import sweep as sweeps

    say = say or progress.tell
    if jobs < 1:
        raise ConfigError(f"{field('jobs')} {jobs}: expected at least 1")
    folder = _path("out", out)
    source = plan if isinstance(plan, Mapping) else _path("plan", plan)
    settled, units = sweeps.load_plan(source, data_root)
    sweeps.keep_plan(source, folder)
    for recipe, (asked, used) in sweeps.replaced_presets(settled, units).items():
        say(
            f"{recipe}: preset {used} is trained, not {asked}, as always on {settled.data}; name "
            "critic.kind to have it otherwise"
        )
    failed: tuple[str, ...] = ()
    stages = []
    for each_s in settled.budget_s:
        with StopSignals(signals) as stop:
            failed = sweeps.run_all(
                units,
                folder,
                each_s=each_s,
                jobs=jobs,
                tell=lambda now: progress.tell(now.words()),
                stop=stop,
            )
        stages.append(
            sweeps.measure_all(
                settled,
                units,
                folder,
                each_s=each_s,
                say=say,
                counting=progress.counter,
                data_root=data_root,
            )
        )
    written = sweeps.write_table(stages, settled, folder)
    return Sweep(folder, tuple(written), tuple(stages), tuple(failed))


def export(run: Run | str | Path, out: str | Path, format: str = "folder") -> Model:
    """Write a run's model as it stands to a folder of its own, and return it.

    Args:
        run: a run or a model folder.
        out: the folder to make.
        format: ``folder`` (manege reads it), or one that needs no manege: ``torch`` (a module and
            its weights), ``safetensors`` (likewise), ``torch-export`` or ``onnx`` (programs). The
            README.md in the folder shows how to draw from it.

    Example:
        >>> run = manege.train("digits", rounds=2)
        >>> model = manege.export(run, "model")
        >>> model = manege.export(run, "plain", format="torch")
    """
    from manege.sampler import export_model, of_run, open_model

    path = _path_of(run)
    model = open_model(path) if (path / "model.json").is_file() else of_run(RunDir.open(path))
    export_model(model, _path("out", out), format)
    return model


def balance(
    run: Run | str | Path,
    out: str | Path,
    to: int,
    *,
    data: Any = None,
    gate: bool = False,
    seed: int = 0,
    data_root: str | None = None,
    force: bool = False,
) -> Balanced:
    """Write a folder with as many pictures of each class as its training pictures lack of `to`.

    Args:
        run: the run that draws them.
        out: the folder to make, with a manifest.
        to: how many pictures each class is to have, real and synthetic together.
        data: the data that it was trained on, if they lie elsewhere now.
        gate: leave out near-copies and what a classifier finds implausible.
        seed: the same seed, the same pictures.
        data_root: where named datasets lie.
        force: overwrite the pictures of an earlier call.

    Example:
        >>> run = manege.train("digits", limit={"3": 20}, rounds=2)
        >>> found = manege.balance(run, "more", 60)
        >>> found.about["classes"]["3"]["kept"]
        40
    """
    from manege.files import blaming
    from manege.picture_files import check_free, write_folder
    from manege.verdict import VerdictOptions
    from manege.verdict import balance as draw_balanced
    from manege.verdict.look import VerdictObserver

    path = _path("out", out)
    check_free(path, force=force)
    source = None if data is None else _source(data)
    options = VerdictOptions(data=source, data_root=data_root, gate=gate, seed=seed)
    over = progress.OneLine()
    look = VerdictObserver(over.tell, over.training, counter=progress.counter("drawn"))
    found = draw_balanced(_path_of(run), to, options, look)
    with blaming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_folder(found.samples, path, found.model.recipe(seed, "exact"), found.about)
    return found


def load_model(path: Run | str | Path) -> Model:
    """Return the model in a model folder or a run directory.

    Example:
        >>> run = manege.train("digits", rounds=2)
        >>> model = manege.load_model(run.path)
    """
    from manege.sampler import open_model

    return open_model(_path_of(path, "path"))


def save_model(model: Model, out: str | Path) -> None:
    """Write a model, also a merged one or one without some labels, to a folder of its own.

    Example:
        >>> run = manege.train("digits", rounds=2)
        >>> manege.save_model(run.model.without(["3"]), "model")
    """
    from manege.sampler import save

    save(model, _path("out", out))


def _options(given: Mapping[str, Any]) -> EvaluationOptions:
    from manege.evaluation import EvaluationOptions

    known = [field.name for field in fields(EvaluationOptions)]
    for name in given:
        if name not in known:
            raise ConfigError(f"{name}: no such option; expected some of {', '.join(known)}")
    ready: dict[str, Any] = dict(given)
    for name in ("metrics", "classes"):
        if ready.get(name) is not None:
            ready[name] = tuple(ready[name])
    for name in ("inception_weights", "feature_weights"):
        if ready.get(name) is not None:
            ready[name] = Path(ready[name])
    return EvaluationOptions(**ready)


def _source(data: Any, **columns: str | None) -> str:
    """Return data as configurations name them: a name, a path, a reference or a digest."""
    named = reference_to(data, "data") if inspect.isroutine(data) else data
    if isinstance(named, str | os.PathLike):
        if given := [name for name, column in columns.items() if column is not None]:
            raise ConfigError(f"{given[0]}: only for a dataset or a frame; leave it out")
        return os.fspath(named)
    from manege.data import objects

    return objects.store(data, say=progress.tell, **columns)


def _reference(data: Any) -> Any:
    """Return the data of an evaluation: an array of pictures as it is, all else as `_source`."""
    import numpy as np

    return data if data is None or isinstance(data, np.ndarray) else _source(data)


def _model(source: Run | Model | str | Path, name: str) -> Model:
    from manege.sampler import Model

    return source if isinstance(source, Model) else load_model(_path_of(source, name))


def _path_of(run: Any, name: str = "run") -> Path:
    return run.path if isinstance(run, Run) else _path(name, run)


def _path(name: str, value: Any) -> Path:
    """Return an argument as a path; raise ConfigError for what is none."""
    if not isinstance(value, str | os.PathLike):
        raise ConfigError(f"{name}: found {shown(value)}, expected the path of a file or folder")
    return Path(value)


def _path_if_any(name: str, value: Any) -> Path | None:
    """Return an argument that may be left out, or be empty, as a path."""
    return None if value is None or (isinstance(value, str) and not value) else _path(name, value)


def start_run(
    config: RunConfig,
    *,
    out: Path | None = None,
    observer: Observer | None = None,
    command: str | None = None,
    on_pixels: RunConfig | None = None,
    runtime: str = "inline",
    workers: int | None = None,
) -> Run:
    """Begin a run and train until it ends or is stopped.

    Args:
        config: what to train, and on what.
        out: the run directory to make; the next free one below ``runs/`` when None.
        observer: sees the run, and may stop it; plain lines on standard error when None.
        command: kept in the run directory; that of this process when None.
        on_pixels: what to train where discriminators cannot see features.
        runtime: inline (this process), local (processes of this machine) or mpi.
        workers: how many processes train at the same time; None chooses.
    """
    command = command or shlex.join(sys.argv)
    request = NewRun(config, on_pixels, out, command)
    prepared, outcome = carried(request, Observers(observer or Lines()), runtime, workers)
    return Run(prepared.path, prepared.config, outcome)


def continue_run(
    path: Path,
    *,
    rounds: int | None = None,
    budget_s: float | str | None = None,
    observer: Observer | None = None,
    runtime: str = "inline",
    workers: int | None = None,
) -> Run:
    """Go on with a run; a new length, in rounds or in time, replaces the old of either kind.

    The other arguments are those of `start_run`.
    """
    most = 1 if runtime == "inline" else workers or most_workers(runtime)
    request = OldRun(path, rounds, budget_s, most)
    prepared, outcome = carried(request, Observers(observer or Lines()), runtime, workers)
    return Run(prepared.path, prepared.config, outcome)
