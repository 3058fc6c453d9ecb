"""Programs for other processes, possibly in another Python: single files that import nothing of edgespec.

watchdog     runs a program and ends it with the parent process
protocol     answers requests on standard input, with one of the engines:
llama_cpp, transformers, genai
"""
