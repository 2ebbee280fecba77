"""Gradients: summed over micro-batches and replicas, in buckets."""
