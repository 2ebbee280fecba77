"""Incidents: alerts, the rungs of their ladders, probation, and what people answer."""
