"""Experiments of many runs: `sweep` compares recipes, `scaling` measures the machine.

Every run is the real command in a process of its own, started and watched by `children`.
"""
