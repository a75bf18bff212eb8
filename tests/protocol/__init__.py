"""The commit protocol driven through exact interleavings."""
