"""Tools around a runtime: the losslessness check, tuning, and the value of a draft model."""
