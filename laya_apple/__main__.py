"""``python -m laya_apple`` is the command ``laya-apple``."""

import sys

from laya_apple.cli import main

if __name__ == "__main__":
    sys.exit(main())
