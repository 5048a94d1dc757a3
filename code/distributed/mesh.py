"""A mesh: ranks as a table, each of them in two groups.

    rank = row · across + column;  ranks 0 to across − 1 are row 0, and so on

Along a row go the messages that are many, so a row is usually a host: its ranks share fast links.
The ranks of a column are on different hosts. PyTorch's `DeviceMesh` of two dimensions is this.
"""

from distributed import Group


def mesh(group: Group, across: int) -> tuple[Group, Group]:
    """Cut a group into rows of `across` ranks: this rank's row, and its column.

    Every rank must call it. Raises ValueError unless all rows are full.
    """
    if across < 1 or group.size % across:
        raise ValueError(f"across={across}: {group.size} ranks do not make rows of that length")
    row, column = divmod(group.rank, across)
    return group.split(row), group.split(column)
