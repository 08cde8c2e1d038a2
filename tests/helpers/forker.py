"""Kills real trainings at every step and inside every commit, and resumes them.

Run as a program: torch is imported once, every training is a forked child, so hundreds of deaths
cost seconds. Reads plans, a JSON object on a line each, and answers each with another.

    python -m tests.helpers.forker < PLANS
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from manege import failpoints
from manege.api import continue_run, start_run
from manege.config import RunConfig, resolve
from manege.observer import Observer
from manege.runs import RunDir
from manege.sampler import run_config


class Silent(Observer):
    """An observer that does not care."""


def config(**sets: str) -> RunConfig:
    """Two classes, three rounds of two steps: twelve steps in all."""
    base = {
        "data.classes": "[3, 7]",
        "data.limit_per_class": "40",
        "training.batch": "20",
        "rounds": "3",
        "sheets.every_rounds": "2",
        "sheets.pictures": "4",
    }
    pairs = [f"{key}={value}" for key, value in (base | sets).items()]
    return resolve(preset="paper", flags={"data.source": "digits"}, sets=pairs)


def forked(work: Callable[[], object], failpoint: str = "") -> int:
    """How a forked child ended: its exit code, or minus the signal that killed it."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.environ[failpoints.VARIABLE] = failpoint
        failpoints.reset()
        try:
            work()
            os._exit(0)
        except BaseException as error:
            sys.stderr.write(f"child: {error!r}\n")
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def state_of(path: Path) -> dict[str, str]:
    """Hashes of every class's last commit, of sheets and model, and what rounds and scores told."""
    rundir = RunDir.open(path)
    # A round trained again tells again; the last word counts.
    hashes = {
        f"round {event['round']} of {event['cell']}": repr(
            [event[key] for key in ("steps", "images", "losses", "spread", "augment", "indices")]
        )
        for event in rundir.events()
        if event["event"] == "round"
    }
    hashes |= {
        f"score {event['round']} of {event['cell']}": json.dumps(
            [event["scores"], event["best"]], sort_keys=True
        )
        for event in rundir.events()
        if event["event"] == "score"
    }
    for cell in rundir.cells():
        found = rundir.load(cell, identity=run_config(rundir).identity())
        digest = hashlib.sha256()
        for name in sorted(found.tensors):
            digest.update(name.encode() + found.tensors[name].tobytes())
        hashes[f"cell {cell} at {found.round_}-{found.step}"] = digest.hexdigest()
    for file in sorted((path / "model").glob("*.safetensors")):
        hashes[file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
    for file in sorted((path / "samples").rglob("*.png")):
        name = str(file.relative_to(path))
        hashes[name] = hashlib.sha256(file.read_bytes()).hexdigest()
    return hashes


def main(plan: dict) -> dict:
    """Every failpoint of the plan: killed there, resumed, compared with the undisturbed run."""
    work, settings = Path(plan["work"]), config(**plan["sets"])
    reference = work / "reference"
    assert forked(lambda: start_run(settings, out=reference, observer=Silent())) == 0
    wanted = state_of(reference)
    results = []
    for number, failpoint in enumerate(plan["failpoints"]):
        path = work / f"killed-{number}"
        begin = partial(start_run, settings, out=path, observer=Silent())
        go_on = partial(continue_run, path, observer=Silent())
        deaths = forked(begin, failpoint)
        again = sum(forked(go_on, second) == -signal.SIGKILL for second in plan["then"])
        finished = forked(go_on)
        results.append(
            {
                "failpoint": failpoint,
                "killed": deaths == -signal.SIGKILL,
                "killed_again": again,
                "resumed": finished == 0,
                "same": finished == 0 and state_of(path) == wanted,
            }
        )
        shutil.rmtree(path)
    return {"reference": wanted, "results": results}


if __name__ == "__main__":
    torch.set_num_threads(1)
    for line in sys.stdin:
        try:
            answer = main(json.loads(line))
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), flush=True)  # noqa: T201
