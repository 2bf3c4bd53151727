r"""Find mathematical answers in boxes, read them as exact values, and compare them.

This folder needs nothing of the project, so it can be copied out. `rewards/boxed.py` calls boxes.py. One answer on its
way, where the truth is `7/2`:

    boxes.py       x = 3\tfrac12\text{ cm}           the last \boxed{} of a completion
    spelling.py    x = 3\frac{1}{2}\text{ cm}        LaTeX and Unicode in one spelling   (tables: symbols.py)
    tokens.py      x  =  3  \frac  {  1  }  {  2  }  cm                                   (words: units.py)
    names.py       no letter here is a function of the brackets behind it; x is the name of a value
    answer.py      one item, no list, no brackets around it: sides x and 3\frac12 cm, and "=" between them
    relations.py   Named(x, ...)                     what the sides say together
    quantity.py    Scalar(..., unit={cm})            a number and its unit
    expression.py  3 + 1/2                           the rules of LaTeX: this is a mixed number, not a product
    value.py       7/2                               exact; in variables, its numbers at 17 points  (and functions.py)
    shapes.py      Named(x, 7/2 cm) is 7/2: true     a bare truth asks for no name and no unit

What cannot be read equals only the same text, so that in doubt an answer is wrong. These right answers are missed:

    numbers that are left to be worked out             3 + 4 for 7, 2 \cdot 3 for 6, 6 \div 2 for 3; but 3 + 4 = 7 is 7
    identities of trigonometry, and its values         \sin 30^\circ for 1/2, \sin(-x) for -\sin x
    functions of whole numbers                         \gcd(4,6), 10 \bmod 3, \max(3,5), C(5,2), C_5^2, {5 \choose 2}
    powers that are too large in another form          3 \cdot 3^{5000} for 3^{5001}, 2025 \cdot 2024! for 2025!
    functions of the same argument in other clothes    f(1+x) for f(x+1); y = 2x for f(x) = 2x
    sums, integrals, limits, derivatives rewritten     \sum_{k=1}^n 2k for \sum_{k=1}^n k \cdot 2
    one unit for another, several units, clocks        1 km for 1000 m, 5 ft 6 in, N m for J, 9 AM for 9:00 AM
    a unit without its case, a ratio like a clock      5 mw for 5 mW, 12:30 for 10:25 (a ratio); 2:5 is 10:25
    a noun that neither question nor truth has         7 pupils, where the question speaks of children
    units of one letter outside \text{}                5 m: a product
    numbers in words but a single one, groups by name  two and a half, 3 dozen, 664_{seven}; but 5 million is read
    repeating decimals that are not marked             0.333\ldots, 0.(3); but 0.\overline{3} is 1/3
    words, names and counted words in another order    Bob and Ann for Ann and Bob
    synonyms, dates                                    20% discount for 20% off, 20 June for June 20
    conditions that must hold together                 x > 1 and x < 5, x \ge -3, x \ne 0; x < 2, x > 3
    sets written in other pieces                       (0,1] \cup [1,2) for (0,2), [0,5] \setminus \{5\} for [0,5)
    equations multiplied by variables, turned signs    x + y = xy for 1/x + 1/y = 1, -x > -1 for x < 1
    equations as an answer, k \in \mathbb{Z} left out  4 + 3 = 7 for 3 + 4 = 7, k\pi for k\pi, k \in \mathbb{Z}
    another letter for whole numbers                   2n\pi for 2k\pi
    products of letters that are a number or a word    VI for IV, cab for abc
    systems and vectors in other layouts               cases, aligned, \frac12 before a matrix, P(3,4), (y,x) = (2,1)
    segments and letters of choice in other clothes    CD for \overline{CD}, c for C, Option B
    Chinese but units, "or" and "and"                  5万元, 最大值为 3
"""
