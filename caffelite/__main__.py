"""`python -m caffelite`: the command line."""

import sys

from caffelite.cli import main

if __name__ == "__main__":
    sys.exit(main())
