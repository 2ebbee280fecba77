"""Workloads that come with Trainmaster; they use the same door as anybody's."""
