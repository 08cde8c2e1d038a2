"""What every runtime and every method promises of a run: letters in order, the same bits, verbs."""
