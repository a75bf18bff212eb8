"""``python -m r2d1``."""

from r2d1.cli import main

if __name__ == "__main__":
    main()
