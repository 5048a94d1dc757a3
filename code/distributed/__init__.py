"""What is taught: one chapter of the book, one module. `from distributed import launch` is enough.

`runtime` carries these modules, `workbench` has what they are tried on, `planner` models what they
cost and `instruments` measures it. The names below come when they are first asked for, because the
models of cost run where there is no torch.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed.runtime.group import Group
    from distributed.world import launch, world

__all__ = ["Group", "launch", "world"]
HOMES = {
    "launch": "distributed.world",
    "world": "distributed.world",
    "Group": "distributed.runtime.group",
}


class _Package(ModuleType):
    """`distributed.world` is the function, also after its module has been imported."""

    def __getattr__(self, name: str) -> Any:
        if name not in HOMES:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        found = getattr(import_module(HOMES[name]), name)
        setattr(self, name, found)
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        is_module = isinstance(value, ModuleType)
        super().__setattr__(name, value.world if name == "world" and is_module else value)


sys.modules[__name__].__class__ = _Package
