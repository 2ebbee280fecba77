"""Chooses a plan where a spec leaves it open. Pure: the same figures always give the same plan."""
