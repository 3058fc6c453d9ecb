"""A local server: the API of OpenAI, and the calls of Ollama that common clients use, over a loaded runtime.

It is an ASGI application of Starlette (the extra `serve`), so that an app can mount it in its own. `edgespec serve`
runs it with uvicorn. The event loop computes nothing: each slot, a runtime with a KV cache of its own over the shared
weights, has a worker thread, and events cross over to the loop through a bounded channel.
"""
