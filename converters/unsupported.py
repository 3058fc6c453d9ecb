"""Hints for architectures that llama.cpp runs and this package does not convert: use an existing GGUF file.

Architectures as in config.json, without their suffixes and in lower case: the causal language models of llama.cpp's own
converter (its conversion/__init__.py, with which tests/test_families.py compares them). The list is a hint only:
whether llama.cpp loads a file is known when it is loaded.
"""

from __future__ import annotations

import re

_RUN = """
afmoe apertus arcee arctic audioflamingo3 baichuan bailingmoe bailingmoev2 bitnet bloom chameleon chatglm codeshell
cogvlm cohere cohere2 cohere2moe dbrx decilm deepseek deepseekocr deepseekv2 deepseekv3 deepseekv32 dots1 dots3note
dots3notetext dotsocr ernie45 ernie45moe exaone exaone4 exaone45 exaonemoe falcon gemma gemma3 gemma3n
glm glm4 glm4moe glm4moelite glm4v glm4vmoe glmmoedsa glmocr gptbigcode gptneox gptrefact
granitemoe granitemoeshared granitemoeswa granitespeech granitespeechplus graniteswa graniteswitch grok grok1 grovemoe
hrmtext hunyuandensev1 hunyuanmoev1 hunyuanvl hyv3 hyv4 internlm2 internlm3 iquestcoder jais jais2 janus kimik25
kimivl kormo laguna llama llama4 llava llavastablelmepoch maincoder maple mellum mimov2 mimov2flash minicpm minicpm3
minimaxm2 minimaxm3sparse ministral3 mistral3 mpt museglimmer nanbeige nemotron olmo olmo3 olmoe openelm orion
paddleocrvl panguembedded phi phi4v phimoe plamo plamo3 plm qwen qwen25omni qwen25vl qwen2audio qwen2moe qwen2vl
qwen3asr qwen3omnimoe qwen3vl qwen3vlmoe rugpt3xl rw sarashina2vision sarvammoe seedoss smallthinker solaropen spark25
stablelm stablelmepoch step3p5 step3p7 stepvl talkie ultravox unlimitedocr vllama3 voxtral xverse youtu youtuvl
bamba falconh1 falconmamba granitemoehybrid jamba lfm2 lfm2moe mamba mamba2 nemotronh nemotronhpuzzle plamo2 qwen35
qwen35moe qwen3next
"""
_RECURRENT = """
bailingmoev3 bailingmoev3vl deepseekv4 glm5next kimik3 kimilinear minicpmv46 minimaxm1 minimaxtext01 qwen4exp rwkv6
rwkv6qwen2 rwkv7 rwkvhybrid
"""


def hint(architecture: str) -> str:
    """The end of the error message for an architecture or a model type: what to do instead; empty if unknown."""
    name = stem(architecture)
    if name in _RUN.split():
        return "; llama.cpp runs it: use a GGUF file of it instead"
    if name in _RECURRENT.split():
        return "; llama.cpp runs it, but edgespec cannot roll its recurrent state back after a rejected draft"
    return ""


def stem(architecture: str) -> str:
    """The name of an architecture without suffixes, in lower case: "Cohere2ForCausalLM" is "cohere2"."""
    bare = re.sub(r"ForCausalLM|ForConditionalGeneration|(LMHead)?Model$", "", architecture.rpartition(".")[2])
    return "".join(character for character in bare.lower() if character.isalnum())
