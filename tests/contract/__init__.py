"""What every runtime and method promises of a run: messages in order, the same bits, verbs."""
