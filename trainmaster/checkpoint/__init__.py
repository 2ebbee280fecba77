"""The checkpoint format: written down, verified, read, resharded, exported, without torch."""
