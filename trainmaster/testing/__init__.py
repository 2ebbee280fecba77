"""Contract suites for plug-ins of third parties. They need pytest, and nothing else here does."""
