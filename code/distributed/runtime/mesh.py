"""Device mesh with two dimensions: the groups of a rank's row and of its column."""

from distributed.runtime.group import Group


def mesh(group: Group, across: int) -> tuple[Group, Group]:
    """Ranks as a table with rows of `across`: this rank's row, and its column.

        rank = row · across + column;  ranks 0 to across − 1 are row 0, and so on

    A row is usually a host, whose ranks share fast links; a column's ranks are on different hosts.
    It corresponds to PyTorch's two-dimensional `DeviceMesh`. Every rank must call it. Raises
    ValueError unless all rows are full.
    """
    if across < 1 or group.size % across:
        raise ValueError(f"across={across}: {group.size} ranks do not make rows of that length")
    row, column = divmod(group.rank, across)
    return group.split(row), group.split(column)
