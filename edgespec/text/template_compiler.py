"""The compilation of templates: code that charges the budget is inserted where the sandbox cannot intercept."""

from __future__ import annotations

from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.visitor import NodeTransformer

from .template_budget import NODE, STEP


class ChargingCompiler(CodeGenerator):
    """Inserts a charge at the beginning of every block of loops, macros and branches."""

    def blockvisit(self, nodes: Any, frame: Frame) -> None:
        self.writeline(f"environment.budget.charge({STEP + sum(map(_static_cost, nodes))})")
        super().blockvisit(nodes, frame)


class ChargingTransformer(NodeTransformer):
    """Puts filters that charge the budget around operations that a sandbox cannot intercept."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "_each")
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = _filtered(node.expr, "_weighed")
        for operand in node.ops:
            operand.expr = _filtered(operand.expr, "_weighed")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.nodes = [_filtered(each, "_weighed") for each in node.nodes]
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.key = _filtered(node.key, "_weighed")
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, "_made") if isinstance(node.arg, nodes.Slice) else node


def _static_cost(node: nodes.Node) -> int:
    """The cost of the text and the expressions of one statement, without those of blocks inside it."""
    text = node.data if isinstance(node, nodes.TemplateData) else getattr(node, "value", None)
    cost = NODE + (len(text) if isinstance(text, str) else 0)
    return cost + sum(_static_cost(child) for child in node.iter_child_nodes() if not isinstance(child, nodes.Stmt))


def _filtered(node: Any, name: str) -> nodes.Expr:
    if isinstance(node, nodes.Const):
        return node  # `_static_cost` counts it
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)
