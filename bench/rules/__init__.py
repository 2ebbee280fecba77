"""What judging costs: a back-test of a million points, and a turn of a live run."""
