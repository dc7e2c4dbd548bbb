"""From the body of a cell to what is shipped: IPython's own lines rewritten, compiled once, its names found."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from IPython.core.error import UsageError
from IPython.core.inputtransformer2 import TransformerManager

from jupyter_torchdist.worker.cell import PROVIDED, cell_filename, compile_cell, source_lines
from jupyter_torchdist.worker.shell import LINE_MAGICS, SHELL_NAME, shell_names

#: a rank has its own
_NEVER = frozenset(
    {*PROVIDED, "__name__", "__file__", "__doc__", "__spec__", "__builtins__", "__loader__", "__package__"}
)


@dataclass(frozen=True)
class PreparedCell:
    """``text`` as the user wrote it, ``code`` as it is compiled (same lines), the notebook names that it reads."""

    text: str
    code: str
    label: str
    names: tuple[str, ...]
    entry: str | None


def prepare(text: str, namespace: Mapping[str, Any]) -> PreparedCell:
    """Raises ``UsageError``: a blank body, a syntax error with its line, a magic that has no meaning on a rank."""
    if not text.strip():
        raise UsageError("%%torchdist: the cell is empty. Write the training code below the first line.")
    label = cell_filename(text)
    code = _plain_python(text, label)
    try:
        compiled = compile_cell(code, label)
    except SyntaxError as exc:
        raise UsageError(_syntax(exc, text)) from exc
    except ValueError as exc:  # NUL in the text
        raise UsageError(f"%%torchdist: the cell can not be compiled: {exc}.") from exc
    tree = ast.parse(code, label)
    names = [n for n in reads(tree) if n in namespace and n not in _NEVER and not hasattr(builtins, n)]
    # IPython hides Python's exit and quit behind its own
    names = [n for n in names if not (n in ("exit", "quit") and type(namespace[n]).__module__.startswith("IPython"))]
    shadowed = [n for n in reads(tree) if n in namespace and hasattr(builtins, n) and _is_users(namespace[n], n)]
    return PreparedCell(text, code, label, tuple(names + shadowed), compiled.entry)


def _is_users(value: Any, name: str) -> bool:
    """A builtin's name that the notebook gave another meaning; not the ones that IPython provides."""
    return value is not getattr(builtins, name) and name not in ("get_ipython", "display", "exit", "quit", "open")


def _plain_python(text: str, label: str) -> str:
    try:
        return _with_shell(text, ast.parse(text, label))
    except SyntaxError as exc:
        try:
            changed = _transformed(text)
            tree = ast.parse(changed, label)
        except SyntaxError:
            raise UsageError(_syntax(exc, text)) from exc
        return _with_shell(changed, tree)
    except ValueError as exc:
        raise UsageError(f"%%torchdist: the cell can not be compiled: {exc}.") from exc


class _SameLines(TransformerManager):
    """IPython's transformations; a line that was continued leaves blank ones, so that line numbers stay."""

    def do_one_token_transform(self, lines: list[str]) -> tuple[bool, list[str]]:
        changed, new = super().do_one_token_transform(lines)
        if changed and len(new) < len(lines):
            at = next((i for i, (a, b) in enumerate(zip(lines, new, strict=False)) if a != b), len(new) - 1)
            new = [*new[: at + 1], *(["\n"] * (len(lines) - len(new))), *new[at + 1 :]]
        return changed, new


def _transformed(text: str) -> str:
    lines = source_lines(text)
    blank = next(i for i, line in enumerate(lines) if line.strip())
    return "\n" * blank + str(_SameLines().transform_cell("".join(lines[blank:])))


def _with_shell(text: str, tree: ast.Module) -> str:
    """Replaces ``get_ipython()`` by the rank's shell, after a look at what is asked of it."""
    lines = [line.encode("utf-8", "surrogatepass") for line in source_lines(text)]
    calls = []
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        called = node.func.value
        if not (isinstance(called, ast.Call) and isinstance(called.func, ast.Name) and called.func.id == "get_ipython"):
            continue
        method = node.func.attr
        first = str(node.args[0].value) if node.args and isinstance(node.args[0], ast.Constant) else ""
        if method == "run_line_magic" and first not in LINE_MAGICS:
            raise UsageError(
                f"%%torchdist: line {node.lineno}: %{first} has no meaning on a rank. "
                f"There are {', '.join('%' + m for m in LINE_MAGICS)} and !shell; run it in a cell above."
            )
        if method == "run_cell_magic":
            raise UsageError(f"%%torchdist: line {node.lineno}: %%{first} has no meaning on a rank.")
        if method in ("run_line_magic", "system", "getoutput") and called.lineno == called.end_lineno:
            calls.append((called.lineno - 1, called.col_offset, called.end_col_offset))
    for line, start, end in sorted(calls, reverse=True):
        lines[line] = lines[line][:start] + SHELL_NAME.encode() + lines[line][end:]
    return b"".join(lines).decode("utf-8", "surrogatepass") if calls else text


def _syntax(exc: SyntaxError, text: str) -> str:
    lines = [line.rstrip("\r\n") for line in source_lines(text)]
    number = exc.lineno or 1
    line = lines[number - 1] if 0 < number <= len(lines) else ""
    caret = f"\n    {' ' * (exc.offset - 1)}^" if exc.offset and line else ""
    return f"%%torchdist: SyntaxError in line {number} of the cell: {exc.msg}\n    {line}{caret}"


def reads(tree: ast.Module) -> list[str]:
    """The global names that a module reads before it has surely bound them itself, in order.

    A function's body counts when it may first be called: at the next statement that calls anything.
    """
    found: dict[str, None] = {}
    bound: set[str] = set()
    later: list[str] = []
    for statement in tree.body:
        scan = _Scan()
        scan.visit(statement)
        found.update(dict.fromkeys(n for n in scan.now if n not in bound))
        later += scan.later
        if scan.calls:
            found.update(dict.fromkeys(n for n in later if n not in bound and n not in scan.own(statement)))
            later = [n for n in later if n not in found]
        bound |= _surely_bound(statement) | scan.bound
    found.update(dict.fromkeys(n for n in later if n not in bound))
    return list(found)


def _surely_bound(statement: ast.stmt) -> set[str]:
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {statement.name}
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return {alias.asname or alias.name.split(".")[0] for alias in statement.names}
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        targets = [statement.target]
    elif isinstance(statement, (ast.With, ast.AsyncWith)):
        inner = {name for s in statement.body for name in _surely_bound(s)}
        targets = [item.optional_vars for item in statement.items if item.optional_vars is not None]
        return inner | _stored(targets)
    return _stored(targets)


def _stored(targets: list[ast.expr]) -> set[str]:
    return {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


class _Scan(ast.NodeVisitor):
    """The global names that one top-level statement reads: ``now``, and ``later`` inside of functions.

    ``bound`` are those that it has surely bound itself until now, whichever branches were taken.
    """

    def __init__(self) -> None:
        self.now: list[str] = []
        self.later: list[str] = []
        self.calls = False
        self._scopes: list[set[str]] = []
        self._depth = 0
        self.bound: set[str] = set()

    def own(self, statement: ast.stmt) -> set[str]:
        """Names that the statement itself binds before anything in it can be called."""
        return _surely_bound(statement) if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)) else set()

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store):
            self._bind(node.id)
            return
        if any(node.id in scope for scope in self._scopes):
            return
        if self._depth:
            self.later.append(node.id)
        elif node.id not in self.bound:
            self.now.append(node.id)

    def _bind(self, name: str | None) -> None:
        if name is not None and not self._scopes and not self._depth:
            self.bound.add(name)

    def _branch(self, nodes: Sequence[ast.AST], *names: str | None) -> set[str]:
        """Visits what may not run, with ``names`` bound; what is bound at its end."""
        before = set(self.bound)
        for name in names:
            self._bind(name)
        for node in nodes:
            self.visit(node)
        after, self.bound = self.bound, before
        return after

    def visit_If(self, node: ast.If | ast.IfExp) -> None:
        self.visit(node.test)
        parts = [node.body, node.orelse]
        body, orelse = (self._branch(part if isinstance(part, list) else [part]) for part in parts)
        self.bound |= body & orelse

    visit_IfExp = visit_If

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.visit(node.values[0])
        self._branch(node.values[1:])

    def visit_While(self, node: ast.While) -> None:
        self.visit(node.test)
        self._branch(node.body)
        self._branch(node.orelse)

    def visit_Try(self, node: ast.Try | ast.TryStar) -> None:
        ends = [self._branch([*node.body, *node.orelse])]
        ends += [self._branch([*([h.type] if h.type else []), *h.body], h.name) for h in node.handlers]
        for statement in node.finalbody:
            self.visit(statement)
        self.bound |= set.intersection(*ends)

    visit_TryStar = visit_Try

    def visit_Match(self, node: ast.Match) -> None:
        self.visit(node.subject)
        for case in node.cases:
            names = [getattr(n, "name", getattr(n, "rest", None)) for n in ast.walk(case.pattern)]
            self._branch([case.pattern, *([case.guard] if case.guard else []), *case.body], *names)

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            self._bind(alias.asname or alias.name.split(".")[0])

    visit_ImportFrom = visit_Import

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            self.visit(target)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self.visit(ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target))
        self.generic_visit(node)

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.iter)
        self._branch([node.target, *node.body])
        self._branch(node.orelse)

    visit_AsyncFor = visit_For

    def visit_With(self, node: ast.With | ast.AsyncWith) -> None:
        self.calls = True
        self.generic_visit(node)

    visit_AsyncWith = visit_With

    def visit_Call(self, node: ast.Call) -> None:
        self.calls = self.calls or not self._depth
        match node:
            case ast.Call(ast.Attribute(ast.Name(name)), [*_, ast.Constant(line)]) if name == SHELL_NAME:
                self._shell_line(str(line))
        self.generic_visit(node)

    def _shell_line(self, text: str) -> None:
        for expression in shell_names(text):
            try:
                self.visit(ast.parse(expression.strip(), mode="eval").body)
            except SyntaxError:  # braces of the shell's own
                continue

    def visit_Await(self, node: ast.Await) -> None:
        self.calls = self.calls or not self._depth
        self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for part in (*node.decorator_list, *node.bases, *(k.value for k in node.keywords)):
            self.visit(part)
        self.calls = self.calls or bool(node.decorator_list)
        # a class body reads its own names first, then the globals; its functions see the globals only
        own: set[str] = set()
        self._scopes.append(own)
        for statement in node.body:
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self._scopes.remove(own)
                self.visit(statement)
                self._scopes.append(own)
            else:
                self.visit(statement)
            own |= _surely_bound(statement)
        self._scopes.pop()
        self._bind(node.name)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        arguments = node.args
        for default in (*arguments.defaults, *(d for d in arguments.kw_defaults if d is not None)):
            self.visit(default)
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        every += [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
        body: list[ast.expr] | list[ast.stmt] = [node.body] if isinstance(node, ast.Lambda) else node.body
        if not isinstance(node, ast.Lambda):
            for part in (*node.decorator_list, *(a.annotation for a in every if a.annotation is not None)):
                self.visit(part)
            if node.returns is not None:
                self.visit(node.returns)
            self.calls = self.calls or bool(node.decorator_list and not self._depth)
        local, global_names = _local_names(list(body))
        self._scopes.append(({a.arg for a in every} | local) - global_names)
        self._depth += 1
        for statement in body:
            self.visit(statement)
        self._depth -= 1
        self._scopes.pop()
        if not isinstance(node, ast.Lambda):
            self._bind(node.name)

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = _function

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> None:
        self.visit(node.generators[0].iter)
        self._scopes.append(_stored([g.target for g in node.generators]))
        for index, generator in enumerate(node.generators):
            if index:
                self.visit(generator.iter)
            for condition in generator.ifs:
                self.visit(condition)
        for part in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
            self.visit(part)
        self._scopes.pop()

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension


def _local_names(body: list[Any]) -> tuple[set[str], set[str]]:
    """Names that a function binds, and those that it declares global."""
    local: set[str] = set()
    declared: set[str] = set()
    queue = list(body)
    while queue:
        node = queue.pop()
        if isinstance(node, ast.Global):
            declared.update(node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
            local.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            local.update(a.asname or a.name.split(".")[0] for a in node.names)
        elif (isinstance(node, ast.ExceptHandler) and node.name) or (
            isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name
        ):
            local.add(node.name)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            local.add(node.name)
        elif not isinstance(node, ast.Lambda):
            queue += ast.iter_child_nodes(node)
    return local, declared
