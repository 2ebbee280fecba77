"""The node agent: one per machine, without torch. It compares what should run with what runs."""
