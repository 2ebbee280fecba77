"""What a step of ours costs beside a bare script of torch, and how much of its traffic shows."""
