"""Mathematical answers as text to exact values, and their comparison; `rewards/boxed.py` is the entrance. In reading
order:

text.py          LaTeX and Unicode to tokens                (tables: symbols.py, units.py)
application.py   which letters before brackets are functions, and which are factors
read.py          tokens to the shape of an answer: a value, a tuple, an interval, an equation, a matrix, words
labels.py        the left side of an equation, where it is a name
choice.py        a letter of multiple choice
colon.py         a time of day or a ratio
numeral.py       a whole number in another base
quantity.py      a number and its unit
parse.py         an expression
value.py         the shapes
compare.py       when two of them are the same
algebra.py       exact quotients of polynomials, with a budget of work
powers.py        powers, roots and logarithms
trigonometry.py  sine, cosine and their kin
functions.py     all other functions
"""
