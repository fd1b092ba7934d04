"""The server's own file of a federation.

`flwr_flynn.federated.federation_file` has the code.
"""

from flwr_flynn.federated.federation_file import Federation
from flwr_flynn.federated.roster import Member

__all__ = ["Federation", "Member"]
