"""Datasets: found, divided, decoded once into a cache, and handed out class by class.

Owns every picture on its way from a file to a uint8 array, and the order in which training sees
them. Knows nothing of tensors, networks, runs or processes.
"""

from manege.data.batches import batch_at, batches_in, round_order
from manege.data.check import Report, check, sheet
from manege.data.dataset import ClassCount, Dataset, open_dataset
from manege.data.named import KNOWN, list_datasets
from manege.data.split import Split

__all__ = [
    "KNOWN",
    "ClassCount",
    "Dataset",
    "Report",
    "Split",
    "batch_at",
    "batches_in",
    "check",
    "list_datasets",
    "open_dataset",
    "round_order",
    "sheet",
]
