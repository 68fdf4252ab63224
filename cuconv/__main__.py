"""`python -m cuconv`."""

import sys

from cuconv.cli import main

if __name__ == "__main__":
    sys.exit(main())
