"""LoRA: low-rank changes of the matrices of a draft (Hu et al. 2021, arXiv 2106.09685)."""

from __future__ import annotations

from typing import Any

from ..errors import OptionError


class Lora:
    """Adds matrices of a low rank to all linear layers of a model but its output, and freezes the rest.

    Args:
        model: a causal language model of transformers.
        rank: of each change.

    Raises:
        OptionError: the model has no linear layers.
    """

    def __init__(self, model: Any, rank: int) -> None:
        import torch  # noqa: PLC0415

        output = model.get_output_embeddings()
        found = {
            name: each
            for name, each in model.named_modules()
            if isinstance(each, torch.nn.Linear) and each is not output
        }
        if not found:
            raise OptionError("--lora changes linear layers, and this draft has none; leave it out")
        model.requires_grad_(requires_grad=False)
        torch.manual_seed(0)
        #: The matrices that are trained, two for each layer.
        self.weights = torch.nn.ParameterDict()
        self._layers, self._hooks = found, []
        for name, layer in found.items():
            down, up = self._names(name)
            self.weights[down] = torch.randn(rank, layer.in_features) / layer.in_features**0.5
            self.weights[up] = torch.zeros(layer.out_features, rank)  # so it begins as the draft that it changes
            self._hooks.append(layer.register_forward_hook(self._changed(down, up)))

    def merge(self) -> None:
        """Add the changes to the model's own matrices. Call it once, when the training has ended."""
        for hook in self._hooks:
            hook.remove()
        for name, layer in self._layers.items():
            down, up = self._names(name)
            layer.weight.data += self.weights[up].data @ self.weights[down].data

    def _changed(self, down: str, up: str) -> Any:
        def hook(_layer: Any, given: tuple[Any, ...], output: Any) -> Any:
            return output + given[0] @ self.weights[down].T @ self.weights[up].T

        return hook

    @staticmethod
    def _names(layer: str) -> tuple[str, str]:
        plain = layer.replace(".", "/")  # no dots in a name of torch
        return f"{plain}/down", f"{plain}/up"
