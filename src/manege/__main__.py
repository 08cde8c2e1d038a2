"""``python -m manege``."""

from manege.cli import main

main()
