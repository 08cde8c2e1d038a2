"""The side of a run that imports torch: prepares it, loads data and method, steps cells.

Owns no mathematics (that is the method's) and no decision about the run (the coordinator's).
"""
