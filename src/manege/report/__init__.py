"""Reports: read a run (`run`, `history`), draw figures (`drawing`, `charts`), lay out a page."""
