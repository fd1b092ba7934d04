"""The server's own file of a federation; `flwr_flynn.federated.federation_file` has the code.

``python -m flwr_flynn.federation show federation.npz`` prints its parties.
"""

import sys

from flwr_flynn.federated.federation_file import Federation, main
from flwr_flynn.federated.roster import Member

__all__ = ["Federation", "Member"]

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
