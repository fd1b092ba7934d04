"""The ledger of a private party at the console: `show`, of a ledger, and `reset`."""

from __future__ import annotations

from argparse import Namespace

from flwr_flynn.app import console, model_facts
from flwr_flynn.errors import DataError
from flwr_flynn.privacy.accounting import shown_bound
from flwr_flynn.privacy.ledger import Budget, Policy


def show(options: Namespace) -> int:
    """Print the charges of a ledger and their sum, or what a model file holds."""
    budget = Budget(options.model, Policy(max_epsilon=0.0))
    if not budget.is_known:
        return model_facts.show(options)
    account, charges = budget.account()
    rows = [["epsilon", "delta", "answered", "mechanism"]]
    closed = ""
    for charge in charges:
        amounts = [_amount(charge.cost.epsilon), _amount(charge.cost.delta)]
        rows.append([*amounts, charge.parts or "nothing", charge.mechanism])
        if charge.cost.closes:
            closed = ", closed"
    console.print_table(rows)
    epsilon, delta = account.total([charge.cost for charge in charges])
    console.say(
        f"composition {account.composition}, charges {len(charges)}{closed}, "
        f"epsilon {_amount(epsilon)}, delta {_amount(delta)} spent"
    )
    return 0


def _amount(amount: float) -> str:
    return shown_bound(amount, 6)


def reset(options: Namespace) -> int:
    """Delete a ledger; what was released stays released."""
    budget = Budget(options.ledger, Policy(max_epsilon=0.0))
    if not budget.is_begun:
        raise DataError(budget.path.name, "a ledger", "nothing")
    budget.reset()
    console.say(f"{options.ledger}: reset. What was released stays released.")
    return 0
