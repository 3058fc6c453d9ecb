"""Text: prompts from messages, streamed output, and text between two vocabularies."""
