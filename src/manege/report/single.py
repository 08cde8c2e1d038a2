"""The report of one run."""

from __future__ import annotations

from pathlib import Path

from manege.report import sections
from manege.report.page import Page
from manege.report.run import RunRecord, read_run


def report(path: Path) -> Page:
    """Return the page of the run in that folder."""
    return page_of(read_run(path))


def page_of(run: RunRecord) -> Page:
    """Return the page of a run that was read."""
    page = Page(f"{run.name} – manege report")
    made = [
        sections.scores(run, page),
        sections.verdict(run, page),
        sections.pictures(run, page),
        sections.nearest(run, page),
        sections.progress(run, page),
        sections.torus(run, page),
        sections.mixture(run, page),
        sections.stability(run, page),
        sections.family(run, page),
        sections.classes(run),
        sections.profile(run, page),
        sections.faults(run, page),
        sections.reproduce(run),
    ]
    page.sections = [section for section in made if section is not None]
    page.head = sections.head(run)
    return page
