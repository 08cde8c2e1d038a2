"""Datasets: finds and divides them, decodes them once into a cache, hands them out by class.

Owns every picture on its way from a file to a uint8 array, and the order in which training sees
them. Knows nothing of tensors, networks, runs or processes.
"""

from manege.data.batches import batch_at, batches_in, round_order
from manege.data.cache import cache_folder
from manege.data.check import Report, check, sheet
from manege.data.dataset import ClassCount, Dataset, open_dataset, own_dataset, survey
from manege.data.named import KNOWN, list_datasets
from manege.data.objects import object_name, store
from manege.data.sets import PictureSet, has_labels, read_set, set_of, survey_measured
from manege.data.split import Split
from manege.data.stacked import NAME as STACKED
from manege.data.toys import TOYS, Toy, toy_of

__all__ = [
    "KNOWN",
    "STACKED",
    "TOYS",
    "ClassCount",
    "Dataset",
    "PictureSet",
    "Report",
    "Split",
    "Toy",
    "batch_at",
    "batches_in",
    "cache_folder",
    "check",
    "has_labels",
    "list_datasets",
    "object_name",
    "open_dataset",
    "own_dataset",
    "read_set",
    "round_order",
    "set_of",
    "sheet",
    "store",
    "survey",
    "survey_measured",
    "toy_of",
]
