"""Nodes and what runs on them: what they say becomes rows, and rows become what they should run."""
