"""A whole life of a training run on this machine: train, ship, kill, pull, resume, compare."""
