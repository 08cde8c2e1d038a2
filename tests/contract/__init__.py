"""What every runtime promises, whoever carries: letters in order, runs with the same bits."""
