"""Checkpoints: written (`writer`), read and verified (`reader`), deleted (`retire`).

Only `writer`, `reader` and what they need for tensors import torch; the agent imports the others.
"""
