"""Files on disk: the cache folder, atomic writes, checksums, pair files."""
