"""Grafana: three boards and the annotations on them, as files for provisioning and through
Grafana's published API.
"""
