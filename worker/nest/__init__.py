"""The nest: imports torch once, forks ranks, hosts stores. One thread, and no torch operation."""
