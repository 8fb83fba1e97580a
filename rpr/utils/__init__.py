"""Files, processes, errors and the terminal: what every other package may use."""
