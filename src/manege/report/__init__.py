"""Pictures of a run: read (`run`, `history`), drawn (`drawing`, `charts`), put on a page."""
