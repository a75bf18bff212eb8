"""Bytes between disk and bucket: planned without I/O, moved in parallel within one budget, digested on the way."""
