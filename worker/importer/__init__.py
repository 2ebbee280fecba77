"""Torch checkpoints as a starting point, read in a process of its own.

Others have written what it reads: memory is limited, sizes are checked before anything is allocated
on a file's word, and only tensors are unpickled.
"""
