"""Which samples a batch holds, and where their bytes come from."""
