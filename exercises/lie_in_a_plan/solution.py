from playground.exercises.check import check


def lie(facts, claims):
    """Memory follows from the facts. Four claims give the step's time, and three of them agree."""
    states = 16 * facts["parameters"] / facts["gpus"] / 1e9
    left = 2 * facts["kept"] * facts["layers"] * facts["tokens_each"] / 1e9
    expected = {"states_gb": states, "activations_gb": left, "held_gb": states + left}
    for name, value in expected.items():
        if abs(claims[name] / value - 1) > 0.02:
            return name
    in_a_step = facts["gpus"] * facts["tokens_each"]
    each = facts["flops_each"] * facts["tokens_each"] / facts["peak"]
    steps = {  # a step's duration, according to each of the four
        "step_s": claims["step_s"],
        "tokens_per_s": in_a_step / claims["tokens_per_s"],
        "days": claims["days"] * 86400 * in_a_step / facts["tokens"],
        "mfu": each / claims["mfu"],
    }
    middle = sorted(steps.values())[1:3]
    apart = {
        name: abs(value / middle[0] - 1) + abs(value / middle[1] - 1)
        for name, value in steps.items()
    }
    return max(apart, key=apart.get)


check("lie_in_a_plan", lie)
