"""What follows from failures: the next attempt, its plan, what is proposed where none can be."""
