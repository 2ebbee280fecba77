"""The worker side: the rank and the nest that forks it (torch), and the node agent (no torch)."""
