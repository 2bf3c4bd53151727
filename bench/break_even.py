"""python -m bench.break_even [--group-size 8] [--declined 0.01 0.1 0.3 0.5 0.7 0.9 0.99]

From which probability of being right on does a policy gradient teach to answer, and not to decline?

By the prices alone (grpo/MATH.md, Eq. 16) that is t: TruthRL's 1/2, KnowRL's 2/3. But the gradient sees advantages
within groups, and dividing by the group's deviation changes them: an outcome that is rare in its group is worth more.
This program trains nothing. It goes through all groups that can be drawn, weighs each by its probability, and finds
where the expected push on declining changes its sign. The advantages are those of grpo/advantages.py.
"""

from math import factorial

from bench.record import markdown_table, plain_parser
from grpo.advantages import group_advantages

PRICES = {  # right, declined, wrong
    "truthrl": (1.0, 0.0, -1.0),
    "knowrl, or t = 0.67": (2.0, 1.0, -1.0),
    "t = 0.75": (1.0, 0.0, -3.0),
    "t = 0.9": (1.0, 0.0, -9.0),
}
DECLINED = (0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99)
HALVINGS = 30  # of the interval that holds the probability

Prices = tuple[float, float, float]


def push_to_decline(
    p: float,
    declined: float,
    prices: Prices,
    scale_rewards: str,
    group_size: int,
) -> float:
    """Return the expected slope of the objective in the logit of declining, per completion.

    p: probability that a given answer is right. declined: probability that a completion declines.
    With Â the advantages, the slope is E[Σ_i Â_i (1[i declines] - declined)] / G, and Σ_i Â_i is 0.
    """
    price_right, price_declined, price_wrong = prices
    probabilities = p * (1 - declined), declined, (1 - p) * (1 - declined)
    slope = 0.0
    for refusals in range(group_size + 1):
        for right in range(group_size - refusals + 1):
            wrong = group_size - refusals - right
            rewards = [price_right] * right + [price_declined] * refusals + [price_wrong] * wrong
            advantages = group_advantages(rewards, scale_rewards)
            of_refusals = sum(advantages[right : right + refusals])
            slope += multinomial((right, refusals, wrong), probabilities) * of_refusals
    return slope / group_size


def multinomial(counts: tuple[int, ...], probabilities: tuple[float, ...]) -> float:
    """Return the probability of these counts.

    >>> multinomial((1, 1), (0.5, 0.5))
    0.5
    """
    probability = float(factorial(sum(counts)))
    for count, of_one in zip(counts, probabilities, strict=True):
        probability *= of_one**count / factorial(count)
    return probability


def answers_from(
    declined: float,
    prices: Prices,
    scale_rewards: str,
    group_size: int = 8,
) -> float:
    """Return the probability of being right above which the gradient teaches to answer."""
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if push_to_decline(middle, declined, prices, scale_rewards, group_size) > 0:
            low = middle
        else:
            high = middle
    return low


def main(argv: list[str] | None = None) -> dict[str, list[float]]:
    parser = plain_parser("bench.break_even", __doc__)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--declined", type=float, nargs="+", default=DECLINED, metavar="SHARE", help="0 < SHARE < 1")
    options = parser.parse_args(argv)
    found = {}
    for name, prices in PRICES.items():
        for scale in ("group", "none"):
            row = [answers_from(share, prices, scale, options.group_size) for share in options.declined]
            found[f"{name}, {scale}"] = row
    columns = ["answers pay from, %", *(f"{share:.0%} declined" for share in options.declined)]
    lines = []
    for name, row in found.items():
        lines.append([name, *(f"{100 * value:.0f}" for value in row)])
    print(markdown_table(columns, lines))
    return found


if __name__ == "__main__":
    main()
