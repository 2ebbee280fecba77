"""Trainmaster's vocabulary: the words, values and messages that the three sides share.

Everything here but `client`, `cli` and `plugins` is pure: no I/O, no clock, no environment, no
randomness.
"""

__version__ = "0.1.0"
