"""Show a run on the terminal, from here or elsewhere: a page that refreshes, or plain lines."""
