"""Carries messages between the coordinator and workers, and centres between workers. No torch."""
