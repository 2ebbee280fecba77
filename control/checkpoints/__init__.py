"""Checkpoints as the control plane judges them: trust, choice, restore, retention, copies."""
