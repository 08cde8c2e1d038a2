"""Write a run for TensorBoard: scalars, sample sheets, configuration; a folder for each cell.

Every record is appended and the file closed again: nothing to lose in a kill, no thread, and no
open file for each of a thousand cells. Needs the extra `tensorboard`; neither torch nor TensorFlow.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from manege.errors import MachineError, field
from manege.files import below
from manege.observer import Observer
from manege.report.history import INDICES
from manege.runs import cell_folder

FOLDER = "tensorboard"


def check_installed() -> None:
    """Raise MachineError when the extra is missing."""
    try:
        import tensorboard.compat.proto.event_pb2
        import tensorboard.summary.writer.record_writer  # noqa: F401
    except ImportError as error:
        raise MachineError(
            f"{field('tensorboard')}: the package tensorboard is missing; "
            "install it with `pip install 'manege[tensorboard]'`, or leave the option out"
        ) from error


class TensorBoardWriter(Observer):
    """An observer that writes events as TensorBoard records."""

    def __init__(self) -> None:
        self._run: Path | None = None
        self._mark = f"{time.time():.0f}"

    def opened(self, path: Path) -> None:
        """Write the configuration and the command of the run in that directory."""
        self._run = path
        text = (path / "config.yaml").read_text(encoding="utf-8")
        command = (path / "command.txt").read_text(encoding="utf-8").strip()
        self._write(None, time.time(), 0, [_text("configuration", f"```yaml\n{text}```")])
        self._write(None, time.time(), 0, [_text("command", f"`{command}`")])

    def event(self, event: dict[str, Any]) -> None:
        """Write the numbers or the sheet of a line of events.jsonl."""
        t = float(event["t"])
        match event["event"]:
            case "round":
                self._scalars(event, t, _of_round(event))
            case "score":
                found = {
                    f"score/{event['metric']}/{name}": one["value"]
                    for name, one in event["scores"].items()
                }
                self._scalars(event, t, found)
            case "sheet":
                self._sheet(event, t)

    def _scalars(self, event: Mapping[str, Any], t: float, found: Mapping[str, Any]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [
            Summary.Value(tag=tag, simple_value=value)
            for tag, value in found.items()
            if value is not None
        ]
        self._write(str(event["cell"]), t, int(event["round"]), values)

    def _sheet(self, event: Mapping[str, Any], t: float) -> None:
        from PIL import Image
        from tensorboard.compat.proto.summary_pb2 import Summary

        assert self._run is not None
        file = self._run / str(event["file"])
        with Image.open(file) as image:
            (width, height), depth = image.size, len(image.getbands())
        picture = Summary.Image(
            height=height, width=width, colorspace=depth, encoded_image_string=file.read_bytes()
        )
        value = Summary.Value(tag="samples", image=picture)
        self._write(str(event["cell"]), t, int(event["round"]), [value])

    def _write(self, cell: str | None, t: float, step: int, values: list[Any]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        assert self._run is not None
        # What is of the whole run lies above: a cell may have any name.
        folder = f"{FOLDER}/{cell_folder(cell)}" if cell is not None else FOLDER
        file = below(self._run, folder, f"events.out.tfevents.{self._mark}.manege")
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh = not file.exists()
        with file.open("ab") as stream:
            writer = RecordWriter(stream)
            if fresh:
                head = Event(wall_time=t, file_version="brain.Event:2")
                writer.write(head.SerializeToString())
            told = Event(wall_time=t, step=step, summary=Summary(value=values))
            writer.write(told.SerializeToString())


def _of_round(event: Mapping[str, Any]) -> dict[str, Any]:
    found = {f"loss/{name}": value for name, value in event["losses"].items()}
    found |= {"speed/images_per_s": event["images_per_s"], "samples/spread": event["spread"]}
    found |= {f"seconds/{name}": value for name, value in event["phases_s"].items()}
    grid = event.get("grid")
    if grid:
        for who in ("generator", "discriminator"):
            found |= {f"grid/{who}/{name}": grid[who][name] for name in ("fitness", "rate")}
        found |= {"grid/mixture": grid["mixture"]["score"], "grid/diversity": grid["diversity"]}
    indices = event.get("indices") or {}
    found |= {f"stability/{name}": indices.get(name) for name in INDICES}
    augment = event.get("augment")
    if augment:
        found |= {f"augment/{name}": value for name, value in augment.items()}
    return found


def _text(tag: str, markdown: str) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING

    plugin = SummaryMetadata.PluginData(plugin_name="text")
    tensor = TensorProto(dtype=DT_STRING, string_val=[markdown.encode()])
    return Summary.Value(tag=tag, metadata=SummaryMetadata(plugin_data=plugin), tensor=tensor)
