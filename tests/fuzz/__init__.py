"""A fuzz campaign: inputs that are wrong in many ways, and a judge of what edgespec makes of them.

    python -m tests.fuzz --inputs 20000 --seed 1 --jobs 2 [--kind gguf --kind onnx]
    python -m tests.fuzz --only gguf:1234 --seed 1
    python -m tests.fuzz --kills 645

An input is named by its kind, the seed and its index, and derived from these alone, so it can be run again. The first
indices of a kind are its corpus: inputs that once did harm, each with a name.

    campaign.py   hands inputs to workers, and sees to it that none hangs, dies or takes the memory
    worker.py     a child process that runs inputs one after another
    place.py      what an input is given: a folder, models to spoil, and ways to report
    judge.py      what may come of an input
    models.py     the small models that are spoilt
    spoil.py      values, bytes and JSON that are wrong; gguf_file.py takes a GGUF file apart
    kinds/        one file for each kind of input
    kills.py      processes killed at random moments, and what they leave
"""
