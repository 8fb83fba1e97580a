#!/usr/bin/env python3
"""Python expressions with the edges of their syntax trees: an example of relations of one's own.

    scripts/expression_graphs DIR [PAIRS]

writes DIR/source and DIR/target for the problem graph_text_files: PAIRS (2,000) random expressions,
where an edge leads from an operator to each of its operands,

    ( a + b ) * c<TAB>2 1 left<TAB>2 3 right<TAB>5 2 left<TAB>5 6 right

and the same in postfix notation, a b + c *.
"""
import ast
import io
import os
import random
import sys
import tokenize

SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


def with_edges(code):
    """A line of words and edges.

    Args:
      code: an expression of names, + - * / and parentheses, on one line.

    Returns:
      the words, and for each edge a tab, the places of operator and operand, "left" or "right".
    """
    words = [word for word in tokenize.generate_tokens(io.StringIO(code).readline)
             if word.type in (tokenize.NAME, tokenize.OP)]
    edges = []

    def place(node):
        """Which word stands for a node; adds the edges below it."""
        if isinstance(node, ast.Name):
            return next(i for i, word in enumerate(words) if word.start[1] == node.col_offset)
        own = next(i for i, word in enumerate(words)          # after ")" of the left operand
                   if word.start[1] >= node.left.end_col_offset and word.string != ")")
        for side in ("left", "right"):
            edges.append(f"{own} {place(getattr(node, side))} {side}")
        return own

    place(ast.parse(code, mode="eval").body)
    return "\t".join([" ".join(word.string for word in words), *edges])


def postfix(code):
    """The expression in postfix notation."""
    def words(node):
        if isinstance(node, ast.Name):
            return [node.id]
        return words(node.left) + words(node.right) + [SIGNS[type(node.op)]]
    return " ".join(words(ast.parse(code, mode="eval").body))


def expression(rng, operators):
    """A random expression with so many operators."""
    if not operators:
        return rng.choice("abcdef")
    left = rng.randrange(operators)
    sides = expression(rng, left), expression(rng, operators - 1 - left)
    left, right = (f"( {side} )" if " " in side and rng.random() < 0.5 else side for side in sides)
    return f"{left} {rng.choice('+-*/')} {right}"


def main(folder, pairs=2000):
    rng = random.Random(1)
    os.makedirs(folder, exist_ok=True)
    with (open(os.path.join(folder, "source"), "w", encoding="utf-8") as source,
          open(os.path.join(folder, "target"), "w", encoding="utf-8") as target):
        for _ in range(int(pairs)):
            code = expression(rng, rng.randint(1, 5))
            source.write(with_edges(code) + "\n")
            target.write(postfix(code) + "\n")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    main(*sys.argv[1:])
