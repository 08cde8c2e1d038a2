"""How messages travel: within this process, between processes of this machine, between ranks."""
