"""The demo pair's training: public texts, tasks made of them, and a target that copies.

    sources.py      texts of public repositories, with their licences, split into trained on and held out
    tasks.py        cases by code: repeat, rewrite, quote, summarise, list, json, talk
    kit.py          all that a training needs, in one folder
    vocabulary.py   a tokenizer for it
    layout.py, growing.py, circuit.py, models.py    the model: a grown or new Llama with hand-set induction heads
    curriculum.py, packing.py, training.py, start.py, saving.py    the training
    copying.py      exactness during the training
    abilities.py    what the finished model can do, in the ordinary runtime

Those of the model and the training import torch: `pip install 'edgespec[distill]'`.
"""
