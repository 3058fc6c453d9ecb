"""Ordinary text to measure passes with.

A pass of a mixture of experts loads the experts that its tokens choose. How many these are depends on how much the
tokens are alike: those of a text are more alike than random ones, and less than a repeated one.
"""

from __future__ import annotations

from ..backends import Vocabulary

_TEXT = """\
The town lies where the river leaves the hills, and most of its houses were built before anyone thought of cars. On
Saturdays there is a market in front of the old school: farmers sell apples, cheese and honey, and a woman from the
next valley mends shoes while people wait. Tom had promised his sister to buy bread there, but he came an hour late and
found only two small loaves. "You can have both for three euros," said the baker, "and if you come earlier next week I
will keep a large one for you." He thanked her, paid, and walked home along the water.

Bread rises because yeast turns sugar into carbon dioxide, and the dough holds the gas. A warm kitchen makes this
quicker; at 5 degrees it takes a whole night, which many bakers prefer, since slow dough tastes better. For one loaf,
mix 500 grams of flour with 350 grams of water, ten grams of salt and a little yeast. Knead it for eight minutes, let it
rest until it is twice as large, then bake it at 230 degrees for about 40 minutes. It is done when it sounds hollow.

A computer would describe the same thing with less charm. A function takes the weight of the flour and returns the other
amounts: def recipe(flour): return {"water": 0.7 * flour, "salt": 0.02 * flour}. If the flour is negative, it should
raise an error rather than return nonsense, and a test ought to check that. Programs of this kind are easy to write and
easy to get wrong; most mistakes are found by reading them aloud to somebody else.

Why do people still bake at home, when a loaf costs so little? Some say that it saves money, which is not true. Others
like the smell, or want to know what they eat. Doctors noticed in 2019 that people who cook for themselves sleep better,
although nobody has shown which of the two is the cause. Perhaps the answer is simpler: it is pleasant to do something
slowly, with one's hands, and to share the result with friends in the evening.
"""


def sample_text(vocabulary: Vocabulary) -> list[int]:
    """The tokens of some paragraphs of English, with a line of code."""
    return vocabulary.tokenize(_TEXT)
