"""Shard sets: made, read, verified, built from text, and described by signed specs."""
