"""Orders and payments to try the sample pipeline with: a week of them, some of them not in order.

Of a hundred orders two have no amount that could be right and one has no id; of a hundred payments
three are in a currency that nobody knows. One order in ten is not paid yet.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from kio.schema.errors import ErrorCode

from tidelog.client import Admin, Cluster, Producer, Refused

ORDERS: Final = "orders"
PAYMENTS: Final = "payments"
TOPICS: Final = (ORDERS, PAYMENTS, "orders.paid", "payments.rejected")
DAYS: Final = 7
_CURRENCIES: Final = ("EUR", "USD", "GBP")
# Writes that are on their way at a time.
_AT_A_TIME: Final = 500


@dataclass(frozen=True, slots=True)
class Fed:
    """What was written, and what a run must make of it."""

    orders: int
    payments: int
    bad_orders: int
    bad_payments: int
    paid: int  # good orders with good payments


async def feed(
    cluster: Cluster,
    orders: int = 1_000,
    *,
    seed: int | None = None,
    partitions: int = 2,
    replicas: int = -1,
) -> Fed:
    """Create the sample's topics if they are missing, and write to them."""
    for name in TOPICS:
        try:
            await Admin(cluster).create_topic(name, partitions, replicas)
        except Refused as error:
            if error.code is not ErrorCode.topic_already_exists:
                raise
    chance = random.Random(seed)
    began = datetime.now(UTC) - timedelta(days=DAYS)
    prefix = f"{chance.getrandbits(32):08x}"
    rows = list(_rows(chance, orders, began, prefix))
    async with Producer(cluster) as producer:
        for start in range(0, len(rows), _AT_A_TIME):
            await asyncio.gather(
                *(
                    producer.write(topic, json.dumps(row).encode(), str(number).encode())
                    for number, (topic, row) in enumerate(rows[start : start + _AT_A_TIME])
                )
            )
    return _account(rows)


def _rows(
    chance: random.Random, orders: int, began: datetime, prefix: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    for number in range(orders):
        ordered = began + timedelta(days=DAYS - 1) * (number / orders)
        order: dict[str, Any] = {
            "order_id": f"{prefix}-{number}",
            "customer": f"customer-{chance.randrange(50)}",
            "amount": round(chance.uniform(5, 200), 2),
            "ordered_at": _iso(ordered),
        }
        if number % 50 == 7:
            order["amount"] = -1.0
        if number % 100 == 23:
            order["order_id"] = None
        yield ORDERS, order
        if number % 10 == 9:
            continue  # not paid yet
        currency = "???" if number % 33 == 5 else chance.choice(_CURRENCIES)
        paid = ordered + timedelta(minutes=chance.randrange(1, 24 * 60))
        yield (
            PAYMENTS,
            {"order_id": f"{prefix}-{number}", "currency": currency, "paid_at": _iso(paid)},
        )


def _account(rows: list[tuple[str, dict[str, Any]]]) -> Fed:
    orders = [row for topic, row in rows if topic == ORDERS]
    payments = [row for topic, row in rows if topic == PAYMENTS]
    good = {row["order_id"] for row in orders if row["order_id"] and row["amount"] > 0}
    paid = [row for row in payments if row["currency"] in _CURRENCIES]
    return Fed(
        orders=len(orders),
        payments=len(payments),
        bad_orders=len(orders) - len(good),
        bad_payments=len(payments) - len(paid),
        paid=sum(row["order_id"] in good for row in paid),
    )


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
