"""The runtime for apps: load models, stream answers, cancel, close."""
