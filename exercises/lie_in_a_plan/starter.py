from playground.exercises.check import check


def lie(facts, claims):
    """The name of the false claim: a key of `claims`.

    The facts are true: parameters, gpus, tokens_each (per GPU and step), tokens (in the whole run),
    flops_each (operations per token, without recomputation), peak (a GPU's FLOP/s), layers, d, and
    kept (elements that a layer keeps per token).

        states_gb       per GPU, in the paper's recipe of 16 bytes per parameter, with ZeRO-3
        activations_gb  per GPU: kept · layers · tokens_each, in bf16
        held_gb         the sum of these two
        step_s          duration of a step
        tokens_per_s    on all GPUs together
        days            duration of the whole run
        mfu             achieved share of the peak, counting only operations that the model needs

    Claims are rounded to three digits, so two numbers that agree are within 1% of each other.
    """
    raise NotImplementedError


check("lie_in_a_plan", lie)
