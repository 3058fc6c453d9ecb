"""Files on disk: caches, whole writes, checksums, pair files."""
