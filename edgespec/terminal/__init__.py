"""The user interface of the commands: options, progress, streamed answers, reports, the chat. Used by `cli.py` only."""
