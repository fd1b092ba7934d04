"""`python -m flwr_flynn`, the same as the command `flwr-flynn`; `flwr_flynn.app.cli` has the code."""

import sys

from flwr_flynn.app.cli import main

if __name__ == "__main__":
    sys.exit(main())
