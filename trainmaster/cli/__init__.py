"""The command line: `trainmaster`, and `python -m trainmaster.cli`."""
