"""Make up references: answers of the forms that mathematics asks for, with random numbers and letters."""

import random
import re


def make_references(count: int, rng: random.Random) -> set[str]:
    """Make up to `count` different answers."""
    return {make_reference(rng) for _ in range(count)}


# Forms are separated by two spaces; # is a number, @ a letter.
FORMS = r"""
    #  -#  \frac{#}{#}  -\frac{#}{#}  #.#  #\sqrt{#}  \frac{#+\sqrt{#}}{#}  #\pi  \frac{#\pi}{#}  \sqrt[3]{#}  #^{#}
    \log_{#} #  \ln #  e^{#}  #+#i  \binom{#}{3}  #!  #\frac{1}{#}  \sin #^\circ  \arctan\frac{#}{#}  #\cdot 10^{#}
    |@-#|  \lfloor @/# \rfloor  #@^2+#@-#  (@-#)(@+#)  \frac{@+#}{@-#}  \sqrt{@^2+#}  e^{-#@}  \frac{#}{@^2}
    \ln(@+#)  \sin(#@)  \cos^2 @-#  #^@-#  @(@-1)/#  #@_1+@_2  @^3-#@  \frac{@^{#}-1}{@-1}  \frac12 @(a+b)
    f(@+#)-f(@)  \Gamma(#)  P(A)+P(B)-#  #e^{@}\cos(#@)+C  y = #@+#  @ = #  @^2+y^2 = #  f(@) = @^2-#
    \frac{@^2}{#}+\frac{y^2}{#} = 1  a_n = #n-#  \ln y = #@+C  @ < #  @ \ge -#  -# < @ \le #  @^2-#@ > #  (#, -#)
    (-#, #)\cup(#, \infty)  [#, \infty)  (-\infty, -#]  (\frac{#}{#}, #)  (#, #, -#)  #, -#  #, #, #.5  \{#, -#, 0\}
    @ = #, y = #  #\pm\sqrt{#}  \frac{\pi}{#}, \frac{#\pi}{#}  \begin{pmatrix} # & # \\ -# & @ \end{pmatrix}
    \begin{pmatrix} # \\ -# \end{pmatrix}  #\text{ cm}^2  \$#.50  #\%  #^\circ  # apples  # (apples)  #\text{ m/s}
    #元  #小时  #:#  (C)  \text{(D)}
"""


def make_reference(rng: random.Random) -> str:
    """Make an answer of a random form."""
    letter = rng.choice("xxxtnzk")
    form = rng.choice(re.split(r"\s{2,}", FORMS.strip()))
    numbered = re.sub("#", lambda _: str(rng.randint(2, 99)), form)
    return numbered.replace("@", letter)
