"""One replica's pipeline: its stages, the messages between them, the order of work."""
