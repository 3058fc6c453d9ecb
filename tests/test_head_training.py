"""What the training of heads on a CPU takes from the target."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.head_training import token_matrices


def test_embeddings_of_a_target_whose_output_matrix_is_another(small_pair: dict[str, Path]) -> None:
    """A head that was trained on the output matrix in their place was right in 85% of the places there, and never when
    it drafted."""
    embedding, output = token_matrices(Path(__file__).parents[1] / "models/demo/target.gguf")
    assert embedding.shape == output.shape == (4096, 768)
    assert np.corrcoef(embedding.ravel(), output.ravel())[0, 1] < 0.9
    tied = token_matrices(small_pair["target"])
    assert np.array_equal(*tied)
