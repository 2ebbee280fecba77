"""What checkpoints cost: training while they are taken, and the disk."""
