"""Distillation: a draft or a head learns from the target's answers (Zhou et al. 2024, DistillSpec, arXiv 2310.08461).

    prompts.py          what the target is asked, and which prompts are held out
    example.py          an answer, with the target's likeliest tokens at each of its places
    shards.py           answers on disk, so that an interrupted collection goes on
    collecting.py       the answers, by the ordinary runtime
    states.py           the target's hidden rows of the answers, which heads read
    simulation.py       acceptance on held-out answers, and the speedup at the prices of this machine
    student.py          the checkpoint of a draft: opened, made from scratch, written
    lora.py             low-rank changes of a draft
    learner.py          what is trained, for the trainer: a draft
    medusa.py           Medusa heads; eagle3.py: an EAGLE-3 head
    head_tokens.py      the tokens that a head has
    head_checkpoint.py  the checkpoint of a head
    loss.py             the divergence from the target
    training.py         the training, and its state on disk
    estimate.py         time, memory and disk space that it will take

torch, transformers and safetensors are imported inside functions.
"""
