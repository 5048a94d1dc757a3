"""Each private part of another package that we use: of which package, why, and that it is there.

Nobody promises to keep these. A new version that renames one fails here with the sentence that says
what stops working; a use that is not listed fails as well, and so does an entry that nothing uses.
"""

import ast
import inspect
import re
import subprocess
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import version
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

import myst_nb.core.read
import pytest
import torch
import torch.utils._python_dispatch as python_dispatch
import torch.utils._pytree as pytree
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.multikernelmanager import MultiKernelManager
from jupyter_server.serverapp import ServerApp
from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection
from sphinx.application import Sphinx
from torch import distributed as dist
from torch.distributed._tools import mem_tracker
from torch.distributed.tensor._sharding_prop import ShardingPropagator

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Use:
    package: str
    has: Callable[[], Any]  # raises, or is false, where the part is gone
    why: str


def in_source(of: Any, words: str) -> bool:
    """For what an object gets when it is made."""
    return words in inspect.getsource(of)


def in_scripts(package: str, word: str) -> bool:
    """For the web parts, which no Python can ask."""
    files = (ROOT / "book/web/node_modules" / package).glob("**/*js")
    return any(word in file.read_text(encoding="utf-8", errors="replace") for file in files)


SERVER = forkserver._forkserver
USED = {
    # --- Python's own
    "_forkserver": Use("python", lambda: SERVER, "a rank starts from it, and a kernel ends it"),
    "_forkserver_pid": Use(
        "python", lambda: hasattr(SERVER, "_forkserver_pid"), "whose the fork server is"
    ),
    "_forkserver_alive_fd": Use(
        "python",
        lambda: hasattr(SERVER, "_forkserver_alive_fd"),
        "a process that was forked lets go of its parent's fork server",
    ),
    "_forkserver_address": Use(
        "python",
        lambda: hasattr(SERVER, "_forkserver_address"),
        "a fork server whose caller was killed removes its socket",
    ),
    "_stop": Use(
        "python",
        lambda: SERVER._stop and resource_tracker._resource_tracker._stop,
        "a kernel waits for what it started, else its restart takes seconds",
    ),
    "_resource_tracker": Use(
        "python", lambda: resource_tracker._resource_tracker, "a kernel ends it, as above"
    ),
    "_negative_number_matcher": Use(
        "python", lambda: ArgumentParser()._negative_number_matcher, "the planner takes -2e12"
    ),
    # --- PyTorch
    "_BatchNorm": Use(
        "torch", lambda: torch.nn.modules.batchnorm._BatchNorm, "what all its batch norms are"
    ),
    "_C": Use("torch", lambda: torch._C, "the place of the next ones"),
    "_autograd": Use("torch", lambda: torch._C._autograd, "the place of the next one"),
    "_unsafe_set_version_counter": Use(
        "torch",
        lambda: torch._C._autograd._unsafe_set_version_counter,
        "autograd takes no gather of a weight for a change of it",
    ),
    "_current_graph_task_id": Use(
        "torch",
        lambda: torch._C._current_graph_task_id,
        "ZeRO-3 knows whether a backward pass runs",
    ),
    "_are_functorch_transforms_active": Use(
        "torch",
        lambda: torch._C._are_functorch_transforms_active,
        "ZeRO-3 refuses torch.func, which would see no weights",
    ),
    "_step_supports_amp_scaling": Use(
        "torch",
        lambda: in_source(torch.amp.grad_scaler, "_step_supports_amp_scaling"),
        "an optimizer of ours refuses PyTorch's GradScaler in a line",
    ),
    "_buffers": Use(
        "torch", lambda: hasattr(torch.nn.Module(), "_buffers"), "a half copy shares its statistics"
    ),
    "_backward_hooks": Use(
        "torch",
        lambda: hasattr(torch.ones(1), "_backward_hooks"),
        "a parameter's hooks stay with it when it leaves the meta device",
    ),
    "_metadata": Use(
        "torch",
        lambda: torch.nn.Linear(1, 1).state_dict()._metadata,
        "versions of a module's state dict, whose names the DDP wrapper changes",
    ),
    "_version": Use(
        "torch", lambda: hasattr(torch.ones(1), "_version"), "how often it was written"
    ),
    "_make_subclass": Use(
        "torch", lambda: torch.Tensor._make_subclass, "a parameter of the user's own class"
    ),
    "_make_wrapper_subclass": Use(
        "torch", lambda: torch.Tensor._make_wrapper_subclass, "a tensor that stands for another"
    ),
    "_execution_engine": Use(
        "torch",
        lambda: torch.autograd.Variable._execution_engine.queue_callback,
        "what is to happen at the end of a backward pass",
    ),
    "_post_accumulate_grad_hooks": Use(
        "torch",
        lambda: hasattr(torch.nn.Parameter(torch.ones(1)), "_post_accumulate_grad_hooks"),
        "DDP refuses a module that is wrapped already",
    ),
    **{
        name: Use("torch", partial(getattr, torch, name), "what clipping calls: ZeRO refuses it")
        for name in ("_foreach_norm", "_foreach_clamp_min_", "_foreach_clamp_max_")
    },
    "_get_backend": Use("torch", lambda: dist.ProcessGroup._get_backend, "a group's timeout"),
    "_timeout": Use(
        "torch", lambda: dist.ProcessGroupGloo._Options()._timeout, "the same, of gloo's options"
    ),
    "_world": Use(
        "torch",
        lambda: hasattr(dist.distributed_c10d._world, "group_count"),
        "groups without a common rank get names of their own",
    ),
    "_cdata": Use("torch", lambda: torch.ones(1).untyped_storage()._cdata, "which storage it is"),
    **{
        name: Use("torch", partial(getattr, dist.ProcessGroup, name), "its work has a deadline")
        for name in ("_allgather_base", "_reduce_scatter_base")
    },
    "_pytree": Use(
        "torch",
        lambda: pytree.tree_leaves and pytree.tree_map_only,
        "tensors in what a model gives",
    ),
    "_python_dispatch": Use(
        "torch", lambda: python_dispatch.TorchDispatchMode, "memory is counted at each operation"
    ),
    "_dynamo": Use("torch", lambda: torch._dynamo, "ranks have it imported before they are forked"),
    **{
        name: Use("torch", partial(import_module, f"torch.{whole}"), f"a plan is executed {why}")
        for name, whole, why in (
            ("_internal", "testing._internal.distributed.fake_pg", "as rank 0 of a fake group"),
            ("_subclasses", "_subclasses.fake_tensor", "with tensors that have no elements"),
            ("_tools", "distributed._tools.fsdp2_mem_tracker", "under PyTorch's own tracker"),
            ("_sharding_prop", "distributed.tensor._sharding_prop", "whose mistake is mended here"),
        )
    },
    "_fake_mode_lock": Use(
        "torch", lambda: ShardingPropagator._fake_mode_lock, "around the tensors it must not count"
    ),
    "_fake_mode_on_entry": Use(
        "torch",
        lambda: in_source(mem_tracker.MemTracker, "_fake_mode_on_entry"),
        "by which it tells tensors that are made up",
    ),
    # --- what makes the pages
    "_load_code_from_file": Use(
        "myst-nb",
        lambda: in_source(myst_nb.core.read, "_load_code_from_file(\n"),
        "a cell loads pieces of a module",
    ),
    "_LoadFileParsingError": Use(
        "myst-nb", lambda: myst_nb.core.read._LoadFileParsingError, "and says what it does not find"
    ),
    "_warncount": Use(
        "sphinx", lambda: in_source(Sphinx, "self._warncount"), "a page that warned is read again"
    ),
    # --- what serves them
    "_limit_rate": Use(
        "jupyter-server",
        lambda: ZMQChannelsWebsocketConnection._limit_rate,
        "a run that never stops printing is stopped",
    ),
    "_kernel_dirs_default": Use(
        "jupyter-client",
        lambda: KernelSpecManager._kernel_dirs_default,
        "no kernel but this interpreter's is offered",
    ),
    "_kernels": Use(
        "jupyter-client",
        lambda: hasattr(MultiKernelManager(), "_kernels"),
        "a kernel that is there and has no marks yet is no error",
    ),
    "_stopping": Use(
        "jupyter-server", lambda: in_source(ServerApp, "_stopping = Bool"), "one Ctrl-C is enough"
    ),
    "_http_server": Use(
        "jupyter-server",
        lambda: in_source(ServerApp.init_httpserver, "self._http_server ="),
        "the server listens on sockets that it has already, and to its own user alone",
    ),
    # --- in the browser
    "_makeSnapshot": Use(
        "pyodide",
        lambda: in_scripts("pyodide", "_makeSnapshot"),
        "a tab's Python starts in a tenth",
    ),
    "_module": Use(
        "pyodide", lambda: in_scripts("pyodide", "_module"), "how much memory a tab's Python takes"
    ),
    "_loadSnapshot": Use(
        "pyodide", lambda: in_scripts("pyodide", "_loadSnapshot"), "of the time, as it did before"
    ),
    "_loader": Use(
        "thebe", lambda: in_scripts("thebe/lib", "_loader"), "nothing is fetched for widgets"
    ),
    "_kernelManager": Use(
        "thebe", lambda: in_scripts("thebe/lib", "_kernelManager"), "a lost server is asked no more"
    ),
}
# Documented, though their names begin so.
PUBLIC = {"_replace", "_asdict", "_fields", "_exit", "_render_traceback_"}
BY_NAME = {"getattr", "hasattr", "mock.patch.object"}  # calls whose second argument is a name
OURS_TOO = {"_http_server"}  # a name that we set on ourselves, as its package does


def is_private(name: str) -> bool:
    return bool(re.fullmatch(r"_[a-zA-Z]\w*", name)) and name not in PUBLIC


def of_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "cls")


def own_names(trees: list[ast.AST]) -> set[str]:
    """What our own sources define, and set on `self`."""
    own = set()
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                own.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                own.add(node.id)
            elif isinstance(node, ast.Attribute) and of_self(node):
                own |= {node.attr} if isinstance(node.ctx, ast.Store) else set()
    return own


def private_uses(trees: list[ast.AST]) -> set[str]:
    """The private names that are used and not our own, or that stand in for a base's."""
    own, found = own_names(trees), set()
    read = {n.attr for tree in trees for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr not in own - OURS_TOO:
                found.add(node.attr)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names]
                found |= set(".".join([*names, getattr(node, "module", None) or ""]).split("."))
            elif isinstance(node, ast.ClassDef) and node.bases:
                methods = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
                found |= methods - read  # which only the base can call
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                if re.fullmatch(r"torch(\.\w+)+", node.value):  # to be imported by its name
                    found |= set(node.value.split("."))
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in BY_NAME:
                found.add(str(getattr(node.args[1], "value", "")))
    return {name for name in found if is_private(name)}


def sources(*ends: str) -> list[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *ends]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [
        ROOT / f for f in found.splitlines() if not f.startswith("tests/") and (ROOT / f).exists()
    ]


def test_each_private_part_that_is_used_is_listed_and_no_other() -> None:
    found = private_uses([ast.parse(file.read_text(encoding="utf-8")) for file in sources("*.py")])
    for file in sources("*.js", "*.mjs"):
        found |= set(re.findall(r"(?:\.|[{,] ?)(_[a-z]\w*)(?=:|\b)", file.read_text()))
    missing, idle = found - USED.keys(), USED.keys() - found
    assert not missing, f"say of {', '.join(sorted(missing))} what package it is of, and why"
    assert not idle, f"nothing uses {', '.join(sorted(idle))} any more: take it out"


@pytest.mark.parametrize("name", USED)
def test_the_private_part_is_there(name: str) -> None:
    use = USED[name]
    known = "" if use.package in ("python", "pyodide", "thebe") else f" {version(use.package)}"
    try:
        there = use.has()
    except (AttributeError, TypeError) as error:
        there = pytest.fail(f"{use.package}{known} has no {name} ({error}): {use.why}")
    assert there, f"{use.package}{known} has no {name}: {use.why}"


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("import x\nx.y._hidden()", "_hidden"),
        ("from x import _hidden", "_hidden"),
        ("import x._hidden.y", "_hidden"),
        ("class A(B):\n    def _hidden(self): ...", "_hidden"),
        ("getattr(x, '_hidden', None)", "_hidden"),
        ("x._hidden = 1", "_hidden"),
    ],
)
def test_a_new_use_is_found(code: str, name: str) -> None:
    assert private_uses([ast.parse(code)]) == {name}


def test_our_own_private_names_are_nobody_elses() -> None:
    code = """
class A:
    def __init__(self):
        self._mine = 1
        self._do()

    def _do(self):
        print(self._mine)
"""
    assert private_uses([ast.parse(code)]) == set()
