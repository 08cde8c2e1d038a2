"""Send a run to MLflow: `manege.train(..., observers=[MlflowObserver("my-experiment")])`."""

from pathlib import Path
from typing import Any

import mlflow

import manege


class MlflowObserver(manege.Observer):
    """Logs losses, scores and sample sheets of every cell; if it breaks, the run goes on."""

    def __init__(self, experiment: str) -> None:
        mlflow.set_experiment(experiment)

    def opened(self, path: Path) -> None:
        self.path = path
        mlflow.start_run(run_name=path.name)
        mlflow.log_artifact(str(path / "config.yaml"))

    def event(self, event: dict[str, Any]) -> None:
        for name, found in {**event.get("losses", {}), **event.get("scores", {})}.items():
            if (value := found["value"] if isinstance(found, dict) else found) is not None:
                mlflow.log_metric(f"{event['cell']}/{name}", value, step=event["round"])
        if event["event"] == "sheet":
            mlflow.log_artifact(str(self.path / event["file"]), "samples")

    def close(self) -> None:
        mlflow.end_run()
