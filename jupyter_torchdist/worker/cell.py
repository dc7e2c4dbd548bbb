"""The body of a cell as a module: compiled without being indented into anything, and run as the rank's ``__main__``."""

from __future__ import annotations

import ast
import asyncio
import builtins
import hashlib
import inspect
import linecache
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Any

#: names that a cell finds without an import
PROVIDED = ("ctx", "report", "display", "get_context")
_VALUE = "__torchdist_value__"
_WRAPPER = "__torchdist_body__"
_STAR = "__torchdist_star__"
#: called when a body only defines one of them, the first that is there
ENTRY_NAMES = ("main", "train", "train_func", "train_fn")


@dataclass(frozen=True)
class CompiledCell:
    """``code`` runs in one dict as globals; ``wrapped`` when it is the body of a function because of a ``return``."""

    code: CodeType
    filename: str
    wrapped: bool
    entry: str | None


def cell_filename(text: str) -> str:
    """The name that a body is compiled under: it depends on the text alone, so caches keyed by code still hit."""
    return f"<torchdist cell {hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:10]}>"


def compile_cell(text: str, filename: str) -> CompiledCell:
    """Raises ``SyntaxError`` with the line of the body, the first line after the magic being 1."""
    tree = ast.parse(text, filename)
    entry = entry_point(tree)
    returns = _top_level(tree, ast.Return)
    if tree.body and isinstance(last := tree.body[-1], ast.Expr):
        target = ast.Name(_VALUE, ast.Store())
        tree.body[-1] = ast.copy_location(ast.Assign([ast.copy_location(target, last)], last.value), last)
    if returns:
        return CompiledCell(_compile_wrapped(tree, filename), filename, True, entry)
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    return CompiledCell(compile(tree, filename, "exec", flags, dont_inherit=True), filename, False, entry)


def entry_point(tree: ast.Module) -> str | None:
    """The function to call when the body only defines and calls nothing: it would train nothing."""
    defined = {s.name: s for s in tree.body if isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef))}
    name = next((n for n in ENTRY_NAMES if n in defined and _takes_at_most_one(defined[n])), None)
    if name is None:
        return None
    quiet = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)
    for statement in tree.body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue  # a docstring
        if not isinstance(statement, quiet):
            return None
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and _reads(statement, name):
            return None
    return name


def _takes_at_most_one(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    needed_keywords = [k for k, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is None]
    return len(positional) - len(arguments.defaults) <= 1 and not needed_keywords


def _reads(node: ast.AST, name: str) -> bool:
    return any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(node))


def _top_level(tree: ast.Module, kind: type[ast.AST]) -> list[ast.AST]:
    """Nodes of a kind outside of functions, lambdas and classes."""
    found, queue = [], list(ast.iter_child_nodes(tree))
    while queue:
        node = queue.pop()
        if isinstance(node, kind):
            found.append(node)
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            queue.extend(ast.iter_child_nodes(node))
    return found


def _compile_wrapped(tree: ast.Module, filename: str) -> CodeType:
    """A body with a ``return`` is the code of a function whose names are all global: nothing else changes."""
    for node in (*_top_level(tree, ast.Yield), *_top_level(tree, ast.YieldFrom)):
        assert isinstance(node, ast.expr)
        where = (filename, node.lineno, node.col_offset + 1, None, node.end_lineno, (node.end_col_offset or 0) + 1)
        raise SyntaxError("'yield' outside function", where)
    future = [s for s in tree.body if isinstance(s, ast.ImportFrom) and s.module == "__future__"]
    body: list[ast.stmt] = [_GlobalForm().visit(s) for s in tree.body if s not in future]
    is_async = any(_top_level(tree, kind) for kind in (ast.Await, ast.AsyncFor, ast.AsyncWith))
    names = sorted(_bound_names(body))
    if names:
        body.insert(0, ast.Global(names))
    make = ast.AsyncFunctionDef if is_async else ast.FunctionDef
    no_arguments = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    function = make(name=_WRAPPER, args=no_arguments, body=body, decorator_list=[])
    module = ast.fix_missing_locations(ast.Module([*future, function], []))
    code = compile(module, filename, "exec", dont_inherit=True)
    wrapper = next(c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == _WRAPPER)
    return wrapper.replace(co_name="<module>", co_qualname="<module>")


class _GlobalForm(ast.NodeTransformer):
    """Rewrites the two module-level forms that a function can not hold: star imports and annotated names."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.stmt:
        if [alias.name for alias in node.names] != ["*"]:
            return node
        call = ast.Call(ast.Name(_STAR, ast.Load()), [ast.Constant(node.module), ast.Constant(node.level)], [])
        return ast.copy_location(ast.Expr(call), node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        if not isinstance(node.target, ast.Name):
            return node
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        return ast.copy_location(ast.Assign([node.target], node.value), node)

    def _keep(self, node: ast.AST) -> ast.AST:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = _keep


def _bound_names(body: list[ast.stmt]) -> set[str]:
    names: set[str] = set()
    queue: list[ast.AST] = list(body)
    while queue:
        node = queue.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
            continue
        if isinstance(node, (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            # a walrus inside a comprehension binds outside of it
            names.update(n.target.id for n in ast.walk(node) if isinstance(n, ast.NamedExpr))
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
            names.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update((a.asname or a.name.split(".")[0]) for a in node.names if a.name != "*")
        elif (isinstance(node, ast.ExceptHandler) and node.name) or (
            isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name
        ):
            names.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            names.add(node.rest)
        queue.extend(ast.iter_child_nodes(node))
    return names


def new_main(filename: str, source: str | None) -> ModuleType:
    """A fresh ``__main__`` for the rank, also known under a name of its own.

    Its ``__file__`` ends in ``ipython``: the one name that multiprocessing's spawn does not run again in its children.
    """
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __spec__=None)
    if source is not None:
        main.__file__ = f"{filename}/ipython"
        for name in (filename, main.__file__):
            remember_source(name, source)
        sys.modules["torchdist_cell_" + filename.strip("<>").rsplit(" ", 1)[-1]] = main
    sys.modules["__main__"] = main
    return main


def remember_source(filename: str, source: str) -> None:
    """Gives tracebacks and ``inspect`` the text of a file that is on no disk; without a time it is never re-read."""
    linecache.cache[filename] = (len(source), None, source_lines(source), filename)


def source_lines(source: str) -> list[str]:
    """The lines as Python counts them: a form feed and the separators of Unicode end none."""
    return re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", source)


def run_cell(cell: CompiledCell, main: ModuleType, provided: Mapping[str, Any], hyper_params: Any) -> Any:
    """Runs a compiled body in ``main``; returns its ``return`` value or that of its last expression."""
    namespace = main.__dict__
    for name, value in provided.items():
        namespace.setdefault(name, value)
    if cell.wrapped:
        namespace[_STAR] = lambda module, level: exec(f"from {'.' * level}{module} import *", namespace)
    outcome = eval(cell.code, namespace)
    if inspect.iscoroutine(outcome):
        outcome = asyncio.run(_await(outcome))
    if cell.entry is not None:
        outcome = call_train_function(namespace[cell.entry], hyper_params)
        namespace.pop(_VALUE, None)
    return outcome if outcome is not None else namespace.pop(_VALUE, None)


async def _await(awaitable: Any) -> Any:
    return await awaitable


def call_train_function(function: Any, hyper_params: Any) -> Any:
    """Calls a train function with the hyper-parameters if it takes an argument."""
    outcome = function(hyper_params) if takes_argument(function) else function()
    return asyncio.run(_await(outcome)) if inspect.iscoroutine(outcome) else outcome


def takes_argument(function: Any) -> bool:
    """Whether a train function takes the hyper-parameters. Raises ``TypeError`` with its signature when it can not."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # a builtin that tells nothing
        return False
    parameters = list(signature.parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p for p in positional if p.default is p.empty]
    keywords = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if len(needed) > 1 or keywords:
        raise TypeError(
            f"a train function takes no argument or one (the hyper-parameters); this is {_name(function)}{signature}"
        )
    has_star = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    return bool(needed) or (bool(positional) and positional[0].name in _HYPER_NAMES) or (has_star and not positional)


#: an argument with a default is the hyper-parameters only when it is called so; ``lambda i=i: …`` must keep its own
_HYPER_NAMES = frozenset(
    {"hyper_params", "hparams", "hyperparams", "hyper_parameters", "config", "cfg", "params", "args", "hp"}
)


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)
