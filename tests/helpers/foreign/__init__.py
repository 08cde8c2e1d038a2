"""Modules as a user writes them, outside the package; put this folder on the path to find them."""

from pathlib import Path

FOLDER = Path(__file__).parent
