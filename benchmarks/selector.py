"""How many messages a selector looks through in a second of one processor core.

    python -m benchmarks.selector [--messages N]

Each message has five properties; time is processor time of this process. The result is checked: a selector
that is fast and wrong is an error here.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

from clarion.message import Headers, encode_headers
from clarion.selector import compile_selector
from clarion.wire.batch import Batch, encode

SELECTORS = (
    "region = 'eu' AND amount > 100",
    "region IN ('eu', 'us') AND NOT urgent",
    "customer LIKE 'c-%7_' OR price * amount > 1500.0",
    "amount BETWEEN 50 AND 150 AND missing IS NULL",
    "JMSPriority > 4",
)
_BATCH_MESSAGES = 500


@dataclass(frozen=True)
class Speed:
    """One selector over one run of messages."""

    selector: str
    messages: int
    matched: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.messages / self.seconds


def properties_of(number: int) -> dict[str, bool | int | float | str | bytes | None]:
    """The properties of message `number`."""
    return {
        "region": ("eu", "us", "asia")[number % 3],
        "amount": number % 200,
        "customer": f"c-{number:07}",
        "urgent": number % 5 == 0,
        "price": number % 40 / 4,
    }


def expected(selector: str, number: int) -> bool:
    """What each of `SELECTORS` should say, written in Python."""
    message = properties_of(number)
    region, amount, customer, urgent, price = message.values()
    assert isinstance(amount, int) and isinstance(price, float) and isinstance(customer, str)
    return (
        region == "eu" and amount > 100,
        region in ("eu", "us") and not urgent,
        customer[-2] == "7" or price * amount > 1_500,
        50 <= amount <= 150,
        False,
    )[SELECTORS.index(selector)]


def measure(selector: str, messages: int) -> Speed:
    """Evaluate one of `SELECTORS` over so many messages; raises if the result is wrong."""
    compiled = compile_selector(selector)
    batches = [
        Batch(
            encode(
                b"queue:orders",
                first + 1,
                [b"x" * 100] * (end - first),
                [encode_headers(Headers(properties=properties_of(n))) for n in range(first, end)],
            )
        )
        for first, end in ((n, min(n + _BATCH_MESSAGES, messages)) for n in range(0, messages, _BATCH_MESSAGES))
    ]
    started = time.process_time()
    found = [compiled.matches(batch, 0, batch.count) for batch in batches]
    seconds = time.process_time() - started
    matched = sum(int(part.sum()) for part in found)
    right = sum(expected(selector, n) for n in range(messages))
    if matched != right:
        raise AssertionError(f"{selector} matched {matched} of {messages}, not {right}")
    return Speed(selector, messages, matched, seconds)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--messages", type=int, default=200_000)
    messages = arguments.parse_args().messages
    for selector in SELECTORS:
        speed = measure(selector, messages)
        print(f"{speed.per_second:>14,.0f} messages/s  {speed.matched:>9,} matched  {selector}")


if __name__ == "__main__":
    main()
