"""The side of a run that knows torch: prepare it, bind data and method, step cells.

Owns no mathematics (that is the method's) and no decision about the run (the coordinator's).
"""
