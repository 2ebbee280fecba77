"""Who is alive and who makes progress: leases, witnesses, ends of ranks, hangs, silence."""
