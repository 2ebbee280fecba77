"""The planner: how good its plans are, and how long it looks for them."""
