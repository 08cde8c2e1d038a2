"""A report's sections on one run; each function returns None when there is nothing to show."""

from manege.report.sections.course import progress, stability
from manege.report.sections.grid import family, mixture, torus
from manege.report.sections.head import STATES, head, length
from manege.report.sections.ledger import classes, faults, profile, reproduce
from manege.report.sections.pictures import COLUMNS, nearest, pictures
from manege.report.sections.scores import HEADLINES, NAMES, better, scores
from manege.report.sections.verdict import verdict
from manege.report.sections.words import measure_name

__all__ = [
    "COLUMNS",
    "HEADLINES",
    "NAMES",
    "STATES",
    "better",
    "classes",
    "family",
    "faults",
    "head",
    "length",
    "measure_name",
    "mixture",
    "nearest",
    "pictures",
    "profile",
    "progress",
    "reproduce",
    "scores",
    "stability",
    "torus",
    "verdict",
]
