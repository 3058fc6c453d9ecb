"""Distillation: a draft model learns from the target's own answers (Zhou et al. 2024, DistillSpec, arXiv 2310.08461).

    prompts.py      what the target is asked, and which prompts are held out
    example.py      an answer, with the target's likeliest tokens at each of its places
    shards.py       answers on disk, so that an interrupted collection goes on
    collecting.py   the answers, by the ordinary runtime
    simulation.py   acceptance of a draft on held-out answers, and the speedup at the prices of this machine
    student.py      the checkpoint that is trained: opened, made from scratch, written
    loss.py         the divergence from the target
    training.py     the training, and its state on disk
    estimate.py     time, memory and disk space that it will take

Only student.py, loss.py and training.py import torch and transformers, inside functions.
"""
