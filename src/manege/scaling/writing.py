"""results.json, tables.md and plot.png in the bench's folder."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from manege.files import write_atomic
from manege.scaling.tables import Row, tables_of

_BLUE, _ORANGE, _GREEN, _GREY = "#0072B2", "#D55E00", "#009E73", "#7a7a7a"
_ROUTINES = (_GREY, _BLUE, _ORANGE, _GREEN, "#CC79A7", "#E69F00")


def write_results(results: Mapping[str, Any], out: Path) -> tuple[Path, Path, Path]:
    """The three files are there; where they lie."""
    files = out / "results.json", out / "tables.md", out / "plot.png"
    write_atomic(files[0], json.dumps(results, indent=1, allow_nan=False).encode())
    write_atomic(files[1], markdown(results).encode())
    write_atomic(files[2], plot(results))
    return files


def markdown(results: Mapping[str, Any]) -> str:
    """All tables as text, under what they were measured with."""
    parts = [f"## {_title(results)}\n", f"{_surroundings(results['machine'])}\n"]
    others = max(run["others_cores"] for run in results["runs"])
    parts.append(f"Other processes kept up to {others:.2f} cores busy meanwhile.\n")
    if disturbed := [run["name"] for run in results["runs"] if run["deaths"]]:
        parts.append(f"Trainers died and were replaced in {', '.join(disturbed)}.\n")
    return "\n".join([*parts, *(table.markdown() for table in tables_of(results))])


def plot(results: Mapping[str, Any]) -> bytes:
    """Weak and strong scaling, the profile and, of a grid, traffic, as PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn = [_draw_weak, _draw_strong, _draw_profile]
    drawn += [_draw_traffic] if results["traffic"] else []
    rows, columns = (2, 2) if len(drawn) == 4 else (1, 3)
    figure = Figure(figsize=(5.5 * columns, 4.4 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    for draw, axes in zip(drawn, figure.subplots(rows, columns).flat, strict=True):
        draw(axes, results)
    machine = results["machine"]
    figure.suptitle(f"{_title(results)}\n{machine['cpu']}, {machine['cores']} cores", fontsize=11)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def _draw_weak(axes: Any, results: Mapping[str, Any]) -> None:
    rows = results["weak"]
    counts, times = [row["workers"] for row in rows], [row["slowest_s"] for row in rows]
    axes.errorbar(
        counts, times, yerr=_deviations(rows, "slowest_s"), fmt="o-", color=_BLUE, capsize=4,
        label="measured",
    )  # fmt: skip
    axes.axhline(times[0], color=_GREY, linestyle="--", label="ideal")
    axes.set_ylim(0, 1.25 * max(row["slowest_s"] + (row["slowest_s_sd"] or 0) for row in rows))
    _whole(axes, counts)
    axes.set(xlabel="workers", ylabel="slowest, seconds", title="Weak scaling: equal work each")
    axes.legend(loc="lower left")


def _draw_strong(axes: Any, results: Mapping[str, Any]) -> None:
    rows, workers = results["strong"], results["settings"]["workers"]
    places = range(len(rows))
    axes.errorbar(
        places, [row["speedup"] for row in rows], yerr=_deviations(rows, "speedup"), fmt="o",
        color=_BLUE, capsize=4, label=f"{workers} workers against one",
    )  # fmt: skip
    axes.axhline(workers, color=_GREY, linestyle="--", label="ideal")
    seconds = [f"{row['one_worker_s']:.1f} s → {row['workers_s']:.1f} s" for row in rows]
    names = [f"{row['shape']}\n{took}" for row, took in zip(rows, seconds, strict=True)]
    axes.set_xticks(list(places), names)
    axes.set_xlim(-0.6, len(rows) - 0.4)
    highest = [row["speedup"] + (row["speedup_sd"] or 0) for row in rows]
    axes.set_ylim(0, 1.2 * max(workers, *highest))
    axes.set(ylabel="speed-up", title="Strong scaling: the same work")
    axes.legend(loc="lower left")


def _draw_profile(axes: Any, results: Mapping[str, Any]) -> None:
    """Of the largest shape, a bar for one worker and one for each of all, by routine."""
    rows = [row for row in results["profile"] if row["shape"] == results["profile"][-1]["shape"]]
    parts = [row for row in rows if row["routine"] != "overall"]
    (overall,) = (row for row in rows if row["routine"] == "overall")
    bars = ("one_worker_s", "a_worker_s")
    other = {bar: overall[bar] - sum(row[bar] for row in parts) for bar in bars}
    starts = dict.fromkeys(bars, 0.0)
    shown = [*parts, {"routine": "other", **{bar: max(0.0, other[bar]) for bar in bars}}]
    for number, row in enumerate(shown):
        widths = [row[bar] for bar in bars]
        axes.barh(
            [0, 1], widths, left=[starts[bar] for bar in bars], height=0.55,
            color=_ROUTINES[number % len(_ROUTINES)], label=row["routine"],
        )  # fmt: skip
        starts = {bar: starts[bar] + row[bar] for bar in bars}
    workers = results["settings"]["workers"]
    axes.set_yticks([0, 1], ["one worker", f"each of {workers}"])
    axes.set_ylim(2.3, -0.5)
    axes.set(xlabel="seconds", title=f"Profile, {rows[0]['shape']}")
    axes.legend(ncols=3, loc="lower center")


def _draw_traffic(axes: Any, results: Mapping[str, Any]) -> None:
    rows: Sequence[Row] = results["traffic"]
    cells = [row["cells"] for row in rows]
    sent = [row["sent_bytes"] / row["centre_bytes"] for row in rows]
    gathered = [row["all_gather_bytes"] / row["centre_bytes"] for row in rows]
    axes.plot(cells, sent, "o-", color=_BLUE, label="measured")
    axes.plot(cells, gathered, ":", color=_ORANGE, label="an all-gather's, computed")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(cells, [f"{row['grid']}" for row in rows])
    axes.minorticks_off()
    ticks = [1 << power for power in range(1, 9)]
    axes.set_yticks(ticks, [str(one) for one in ticks])
    axes.set(xlabel="grid", ylabel="centres sent, a cell and round", title="Cells' traffic")
    axes.legend(loc="upper left")


def _whole(axes: Any, counts: Sequence[int]) -> None:
    axes.set_xticks(list(counts), [str(count) for count in counts])
    axes.set_xlim(min(counts) - 0.5, max(counts) + 0.5)


def _deviations(rows: Sequence[Row], name: str) -> list[float] | None:
    found = [row[f"{name}_sd"] for row in rows]
    return None if any(one is None for one in found) else found


def _title(results: Mapping[str, Any]) -> str:
    settings = results["settings"]
    return f"Scaling: {settings['method']}, {settings['runtime']} runtime, {settings['data']}"


def _surroundings(machine: Mapping[str, Any]) -> str:
    named = ("manege", "python", "torch", "numpy", "mpi4py", "mpi")
    versions = [f"{name} {machine[name]}" for name in named if name in machine]
    memory = f"{machine['memory_bytes'] / 1e9:.1f} GB"
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {memory} of memory; {machine['system']}; "
        f"{', '.join(versions)}."
    )
