"""Read mathematical answers as exact values, and compare them; `rewards/boxed.py` calls this. Read in this order:

spelling.py      LaTeX and Unicode in one spelling          (tables: symbols.py, units.py)
number_words.py  numbers in words to figures
tokens.py        text to tokens
key.py           the normal form of what has no value
names.py         which letters before brackets are functions; the left side of an equation, where it is a name
answer.py        tokens to the shape of an answer: a value, a tuple, an interval, an equation, a matrix, words
shapes.py        the shapes
lists.py         letters of multiple choice; what belongs together in a list, and whether its order counts
regions.py       sets of real numbers in one normal form: unions, differences, conditions on one variable
relations.py     sides and the signs between them: equations, inequalities, chains
quantity.py      a number and its unit, or its base
expression.py    tokens to an exact value
equality.py      when two shapes are the same
value.py         the values: the numbers of an expression at random points
functions.py     powers, roots, logarithms, sines and all that has a name

Not claimed: times of day. 9 AM equals only the same text.
"""
