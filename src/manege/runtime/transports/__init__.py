"""Carries messages: within this process, between processes of this machine, between MPI ranks."""
