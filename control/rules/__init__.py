"""Rules: conditions on metrics, their state as a fold over the surviving lineage, and their ladders
of actions. Pure.
"""
