"""What a person sees: answers as they stream, figures, and the chat itself. Only `cli.py` is above it."""
