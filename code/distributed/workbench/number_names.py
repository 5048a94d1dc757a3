"""Numbers and their English names, line by line: a text from which a small model learns to spell.

`483 four hundred eighty-three`. A fifth of all numbers below 1,000 is held out: whoever spells
those has learnt how numbers are named, and not the lines by heart.
"""

import random

ONES = [
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    *("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen"),
    *("eighteen", "nineteen"),
]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def name_of(n: int) -> str:
    """The name of n. Raises ValueError unless 0 ≤ n < 1000."""
    if not 0 <= n < 1000:
        raise ValueError(f"n={n}: 0 to 999")
    if n < 20:
        return ONES[n]
    if n < 100:
        return TENS[n // 10 - 2] + (f"-{ONES[n % 10]}" if n % 10 else "")
    return f"{ONES[n // 100]} hundred" + (f" {name_of(n % 100)}" if n % 100 else "")


def split(seed: int = 0) -> tuple[list[int], list[int]]:
    """The numbers to learn from, and those that are held out."""
    numbers = list(range(1000))
    random.Random(seed).shuffle(numbers)
    return numbers[200:], numbers[:200]


def lines(count: int = 20_000, seed: int = 1) -> str:
    """So many lines, each with a number drawn from those to learn from."""
    chance, (learn, _) = random.Random(seed), split()
    return "".join(f"{n} {name_of(n)}\n" for n in (chance.choice(learn) for _ in range(count)))


def main() -> None:
    """A few lines, and what is held out."""
    print(lines(4), end="")
    learn, held_out = split()
    print(f"{len(learn)} numbers to learn from, {len(held_out)} held out, such as {held_out[:3]}")
    assert not set(learn) & set(held_out)


if __name__ == "__main__":
    main()
