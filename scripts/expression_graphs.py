#!/usr/bin/env python3
"""Writes Python expressions with the edges of their syntax trees: an example of own relations.

FOLDER/source and FOLDER/target are made for the problem graph_text_files: random expressions, in
which an edge leads from each operator to each of its operands,

    ( a + b ) * c<TAB>2 1 left<TAB>2 3 right<TAB>5 2 left<TAB>5 6 right

and the same expressions in postfix notation, a b + c *.
"""
import argparse
import ast
import io
import os
import random
import tokenize

from rpr.utils import files

SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


def with_edges(code: str) -> str:
    """A line of words and edges.

    Args:
      code: an expression of names, + - * / and parentheses, on one line.

    Returns:
      The words, and for each edge a tab, the positions of operator and operand, "left" or "right".
    """
    words = [word for word in tokenize.generate_tokens(io.StringIO(code).readline)
             if word.type in (tokenize.NAME, tokenize.OP)]
    edges: list[str] = []

    def position(node: ast.AST) -> int:
        """The position of a node's word; adds the edges below the node."""
        if isinstance(node, ast.Name):
            return next(i for i, word in enumerate(words) if word.start[1] == node.col_offset)
        operator = next(i for i, word in enumerate(words)     # after ")" of the left operand
                        if word.start[1] >= node.left.end_col_offset and word.string != ")")
        for side in ("left", "right"):
            edges.append(f"{operator} {position(getattr(node, side))} {side}")
        return operator

    position(ast.parse(code, mode="eval").body)
    return "\t".join([" ".join(word.string for word in words), *edges])


def postfix(code: str) -> str:
    """The expression in postfix notation."""
    def words(node: ast.AST) -> list[str]:
        if isinstance(node, ast.Name):
            return [node.id]
        return words(node.left) + words(node.right) + [SIGNS[type(node.op)]]
    return " ".join(words(ast.parse(code, mode="eval").body))


def expression(rng: random.Random, operators: int) -> str:
    """A random expression with a given number of operators."""
    if not operators:
        return rng.choice("abcdef")
    left_operators = rng.randrange(operators)
    operands = (expression(rng, left_operators), expression(rng, operators - 1 - left_operators))
    left, right = (f"( {operand} )" if " " in operand and rng.random() < 0.5 else operand
                   for operand in operands)
    return f"{left} {rng.choice('+-*/')} {right}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="where the two files are written; they must not exist")
    parser.add_argument("pairs", nargs="?", type=int, default=2000, help="number of expressions")
    arguments = parser.parse_args()
    if arguments.pairs < 1:
        parser.error(f"pairs={arguments.pairs}: at least 1")
    rng = random.Random(1)
    codes = [expression(rng, rng.randint(1, 5)) for _ in range(arguments.pairs)]
    source, target = (os.path.join(arguments.folder, name) for name in ("source", "target"))
    try:
        os.makedirs(arguments.folder, exist_ok=True)
        for path in filter(os.path.lexists, (source, target)):
            parser.exit(1, f"{parser.prog}: {path} exists\n")
        for path, line_of in ((source, with_edges), (target, postfix)):
            files.write_atomically(path, "".join(f"{line_of(code)}\n" for code in codes))
    except OSError as error:
        parser.exit(1, f"{parser.prog}: {error}\n")


if __name__ == "__main__":
    main()
