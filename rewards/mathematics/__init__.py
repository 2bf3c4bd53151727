"""Mathematical answers as text to exact values, and their comparison; `rewards/boxed.py` is the entrance. In reading
order:

text.py       LaTeX and Unicode to tokens                (tables: symbols.py, units.py)
read.py       tokens to the shape of an answer: a value, a tuple, an interval, an equation, a matrix, words
choice.py     a letter of multiple choice
quantity.py   a number and its unit
parse.py      an expression
value.py      shapes, and when two of them are the same
algebra.py    exact quotients of polynomials, with a budget of work
functions.py  powers, roots, logarithms, special values of trigonometric functions
"""
