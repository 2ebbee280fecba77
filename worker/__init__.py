"""The worker side: the rank (torch), the nest that forks ranks (torch), and the node agent (no torch)."""
