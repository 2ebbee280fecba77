"""A workload's layers on this rank: built, held, computed in the asked precision."""
