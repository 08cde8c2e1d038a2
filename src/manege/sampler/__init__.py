"""The combined model: assembles it from a run, stores, joins and divides it, draws from it.

Owns everything between committed generators and pictures; trains nothing.
"""

from manege.sampler.exporting import ExportFormat, export_model
from manege.sampler.latents import Latents
from manege.sampler.model import Component, Model, Samples, require_memory
from manege.sampler.plain import Sampler
from manege.sampler.runs import of_run, open_model, run_cells, run_config, run_data
from manege.sampler.store import load, save

__all__ = [
    "Component",
    "ExportFormat",
    "Latents",
    "Model",
    "Sampler",
    "Samples",
    "export_model",
    "load",
    "of_run",
    "open_model",
    "require_memory",
    "run_cells",
    "run_config",
    "run_data",
    "save",
]
