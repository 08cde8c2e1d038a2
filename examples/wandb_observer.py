"""Send a run to Weights & Biases: `manege.train(..., observers=[WandbObserver("my-project")])`."""

from pathlib import Path
from typing import Any

import wandb

import manege


class WandbObserver(manege.Observer):
    """Logs losses, scores and sample sheets of every cell; if it breaks, the run goes on."""

    def __init__(self, project: str) -> None:
        self.project = project

    def opened(self, path: Path) -> None:
        self.path, config = path, manege.Run.open(path).config.model_dump(mode="json")
        self.run = wandb.init(project=self.project, name=path.name, config=config)

    def event(self, event: dict[str, Any]) -> None:
        if event["event"] == "round":
            self.run.log({f"{event['cell']}/{k}": v for k, v in event["losses"].items()})
        elif event["event"] == "score":
            self.run.log({f"{event['cell']}/{k}": v["value"] for k, v in event["scores"].items()})
        elif event["event"] == "sheet":
            self.run.log({f"{event['cell']}/samples": wandb.Image(str(self.path / event["file"]))})

    def close(self) -> None:
        self.run.finish()
