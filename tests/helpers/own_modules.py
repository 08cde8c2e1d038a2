"""Modules that lie outside the package, for tests of parts that come from there."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from textwrap import dedent

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "extending.md"

EXAMPLES: dict[str, str] = {
    found[1]: found[0]
    for found in re.findall(r"```python\n(# (\w+)\.py\n.*?)```", PAGE.read_text(), re.DOTALL)
}
"""The modules that docs/extending.md shows, by their names."""


class OwnModules:
    """A folder of modules that this process and its children can import."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        before = os.environ.get("PYTHONPATH")
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), before])))
        patch.syspath_prepend(folder)

    def write(self, name: str, text: str) -> None:
        """Write a module, which is imported anew."""
        (self.folder / f"{name}.py").write_text(dedent(text))
        sys.modules.pop(name, None)

    def forget(self) -> None:
        """Forget what was imported from the folder."""
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None) or "").startswith(f"{self.folder}{os.sep}"):
                del sys.modules[name]
