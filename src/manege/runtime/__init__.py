"""Carries messages between the coordinator and hosts, and centres between hosts. No torch."""
