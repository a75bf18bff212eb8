"""r2d1 beside its peers, measured on this machine alone; README.md says how to run it and how to read it."""
