"""The samples of metrics: in which form they are stored, and how they grow old."""
