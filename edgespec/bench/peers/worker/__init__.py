"""What runs in other processes, and may run in another Python: files of their own, which import nothing of edgespec.

watchdog     ends a program when whoever started it ends
protocol     answers what comes on standard input, by one of the engines:
llama_cpp, transformers, genai
"""
