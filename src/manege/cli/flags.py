"""The flag of each field: messages name a field, and on the command line it is called so."""

from __future__ import annotations

from manege.errors import FieldNames

FLAGS = FieldNames(
    "--",
    "-",
    {
        "budget_s": "--budget",
        "count": "-n",
        "ranks": "-n",
        "score.samples": "--set score.samples",
        "sets": "--set",
        "to": "--balance-to",
    },
)
"""Of all verbs."""

SHORT_OUT = FLAGS._replace(others={**FLAGS.others, "out": "-o"})
"""Of the verbs that take the place of their result as -o."""
