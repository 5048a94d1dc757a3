"""What of a large matrix is left for `make test`."""

from itertools import combinations

from tests.rows import covering


def split(mark):
    """The rows that every run has, and those of `make test-all`."""
    rows = [(parameter.values, bool(parameter.marks)) for parameter in mark.args[1]]
    return [values for values, slow in rows if not slow], [values for values, _ in rows]


def test_each_pair_of_values_meets_and_no_row_is_lost():
    often, every = split(covering(a=[1, 2, 3], b="xyz", c=[True, False]))
    assert len(every) == 18
    assert len({*every}) == 18
    assert len(often) <= 10
    for one, other in combinations(range(3), 2):
        assert {(row[one], row[other]) for row in often} == {
            (row[one], row[other]) for row in every
        }


def test_of_two_columns_each_value_comes_once():
    often, every = split(covering(a=[1, 2, 3, 4], b="xy"))
    assert len(often) == 4
    assert len(every) == 8
    assert [{row[column] for row in often} for column in (0, 1)] == [{1, 2, 3, 4}, {"x", "y"}]


@covering(a__b={"small": (1, 2)}, c=[max])
def test_several_arguments_are_one_column_and_a_row_has_a_name(request, a, b, c):
    assert (a, b, c) == (1, 2, max)
    assert request.node.callspec.id == "small-max"
