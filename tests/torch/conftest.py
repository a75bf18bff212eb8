"""These tests need PyTorch, which `nox -s torch` installs; where it is not, they are not collected."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") else ["test_*.py"]
