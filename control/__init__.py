"""The control plane: facts in, decisions out, one writer."""
