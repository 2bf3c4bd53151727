"""Mathematical answers as text to exact values, and their comparison; `rewards/boxed.py` is the entrance. In reading
order:

clean.py         LaTeX and Unicode in one spelling          (tables: symbols.py, units.py)
number_words.py  numbers in words to figures
text.py          text to tokens
key.py           the normal form of what has no value
application.py   which letters before brackets are functions, and which are factors
read.py          tokens to the shape of an answer: a value, a tuple, an interval, an equation, a matrix, words
lists.py         what belongs together in a list, and whether its order counts
relations.py     sides and the signs between them: equations, inequalities, chains
labels.py        the left side of an equation, where it is a name
choice.py        a letter of multiple choice
colon.py         a time of day or a ratio
numeral.py       a whole number in another base
quantity.py      a number and its unit
parse.py         an expression
value.py         the shapes
equality.py      when two of them are the same
algebra.py       exact quotients of polynomials, with a budget of work
powers.py        powers, roots and logarithms
trigonometry.py  sine, cosine and their kin
functions.py     all other functions
"""
