"""Pictures of a run: read (`run`, `events`, `history`), drawn (`drawing`, `charts`), put on a page."""
