"""Benches: what things cost, measured against a baseline in the same run. See docs/bench.md."""
