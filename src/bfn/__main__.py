"""``python -m bfn``: the command line; for several processes ``accelerate launch -m bfn train ...``."""

import sys

from bfn.cli import main

if __name__ == "__main__":
    sys.exit(main())
