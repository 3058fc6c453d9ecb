"""Folders of OpenVINO IR models for tests: a stateful Llama as optimum-intel exports it, from a checkpoint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from edgespec.backends.openvino_package import bindings

from .reference import Floats, read_tensors

ov = bindings()  # without its telemetry
ops = ov.opset13
_COPIED = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


def write(source: Path, folder: Path, *, groups: int = 0, state: bool = True, recurrent: bool = False) -> Path:
    """The checkpoint at `source`, a Llama, as an IR model in `folder`.

    Args:
        groups: the numbers of a matrix of eight bits that share a scale; 0 for float32.
        state: whether keys and values are kept.
        recurrent: whether it has a state that is no key or value.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in _COPIED:
        if (source / name).is_file():
            shutil.copy(source / name, folder / name)
    model = _Llama(source, groups, state).model(recurrent)
    ov.save_model(model, folder / "openvino_model.xml", compress_to_fp16=False)
    (folder / "openvino_tokenizer.xml").write_text("<net/>", encoding="utf-8")
    return folder


class _Llama:
    def __init__(self, source: Path, groups: int, state: bool) -> None:
        self._config: dict[str, Any] = json.loads((source / "config.json").read_text(encoding="utf-8"))
        self._tensors = read_tensors(source)
        self._groups, self._state = groups, state
        self._ids, self._places = _input("input_ids", [-1, -1]), _input("position_ids", [-1, -1])
        self._attended = _input("attention_mask", [-1, -1])
        self._beams = _input("beam_idx", [-1], ov.Type.i32)
        self._sinks: list[Any] = []
        self._heads = self._config["num_attention_heads"]
        self._kv = self._config["num_key_value_heads"]
        self._width = self._config["hidden_size"] // self._heads

    def model(self, recurrent: bool) -> Any:
        embeddings = self._matrix("model.embed_tokens.weight")
        x = ops.gather(embeddings, self._ids, _whole(0))
        turn, mask = self._turn(), self._mask()
        for layer in range(self._config["num_hidden_layers"]):
            name = f"model.layers.{layer}"
            attended = self._attention(name, layer, self._norm(x, f"{name}.input_layernorm"), turn, mask)
            x = ops.add(x, attended)
            inner = self._norm(x, f"{name}.post_attention_layernorm")
            gate = ops.swish(self._linear(inner, f"{name}.mlp.gate_proj"))
            product = ops.multiply(gate, self._linear(inner, f"{name}.mlp.up_proj"))
            x = ops.add(x, self._linear(product, f"{name}.mlp.down_proj"))
        if recurrent:
            x = ops.add(x, self._recurrent(x))
        logits = ops.matmul(self._norm(x, "model.norm"), embeddings, transpose_a=False, transpose_b=True)
        logits.output(0).set_names({"logits"})
        inputs = [self._ids, self._attended, self._places, *([self._beams] if self._state else [])]
        return ov.Model([ops.result(logits)], self._sinks, inputs, "Model0")

    def _attention(self, name: str, layer: int, x: Any, turn: tuple[Any, Any], mask: Any) -> Any:
        query, key, value = (
            ops.transpose(
                ops.reshape(self._linear(x, f"{name}.self_attn.{part}_proj"), _whole([0, 0, heads, self._width]), True),
                _whole([0, 2, 1, 3]),
            )
            for part, heads in (("q", self._heads), ("k", self._kv), ("v", self._kv))
        )
        query, key = (self._rotated(each, turn) for each in (query, key))
        keys, values = (
            self._repeated(self._kept(each, f"past_key_values.{layer}.{kind}present.{layer}.{kind}"))
            for kind, each in (("key", key), ("value", value))
        )
        found = ops.scaled_dot_product_attention(query, keys, values, mask)
        whole = ops.reshape(ops.transpose(found, _whole([0, 2, 1, 3])), _whole([0, 0, -1]), True)
        return self._linear(whole, f"{name}.self_attn.o_proj")

    def _kept(self, x: Any, name: str) -> Any:
        """Rows of the state, and after them those of the pass, which become the state."""
        if not self._state:
            return x
        shape = [-1, self._kv, -1, self._width]
        variable = _variable(name, shape)
        begin = ops.concat([_length(self._ids, 0), _whole([self._kv, 0, self._width])], 0)
        state = ops.read_value(ops.broadcast(np.float32(0), begin), variable)
        whole = ops.concat([ops.gather(state, self._beams, _whole(0)), x], 2)
        self._sinks.append(ops.assign(whole, variable))
        return whole

    def _recurrent(self, x: Any) -> Any:
        hidden = self._config["hidden_size"]
        variable = _variable("cache_params.ssm.0", [-1, hidden])
        begin = ops.concat([_length(self._ids, 0), _whole([hidden])], 0)
        state = ops.read_value(ops.broadcast(np.float32(0), begin), variable)
        grown = ops.add(state, ops.reduce_sum(x, _whole([1]), keep_dims=False))
        self._sinks.append(ops.assign(grown, variable))
        return ops.unsqueeze(state, _whole(1))

    def _repeated(self, x: Any) -> Any:
        """Each head of keys or values for the heads of queries that share it."""
        shares = self._heads // self._kv
        size = ops.concat([_length(x, 0), _whole([self._kv, shares]), _length(x, 2), _whole([self._width])], 0)
        whole = ops.broadcast(ops.unsqueeze(x, _whole(2)), size, broadcast_spec="BIDIRECTIONAL")
        return ops.reshape(whole, _whole([0, self._heads, -1, self._width]), True)

    def _turn(self) -> tuple[Any, Any]:
        speeds = self._config["rope_theta"] ** -(np.arange(0, self._width, 2, dtype=np.float32) / self._width)
        places = ops.convert(ops.unsqueeze(self._places, _whole(2)), "f32")
        angles = ops.multiply(places, ops.constant(speeds.reshape(1, 1, -1)))
        whole = ops.unsqueeze(ops.concat([angles, angles], 2), _whole(1))
        return ops.cos(whole), ops.sin(whole)

    def _rotated(self, x: Any, turn: tuple[Any, Any]) -> Any:
        first, second = ops.split(x, _whole(3), 2).outputs()
        turned = ops.concat([ops.multiply(second, np.float32(-1)), first], 3)
        return ops.add(ops.multiply(x, turn[0]), ops.multiply(turned, turn[1]))

    def _mask(self) -> Any:
        """[batch, 1, tokens, rows]: 0 where a token attends to a row."""
        rows = ops.range(_whole(0), ops.squeeze(_length(self._attended, 1), _whole([0])), _whole(1), "i64")
        places = ops.unsqueeze(ops.unsqueeze(self._places, _whole(1)), _whole(3))
        return ops.select(ops.less_equal(rows, places), np.float32(0), np.float32(-1e9))

    def _norm(self, x: Any, name: str) -> Any:
        mean = ops.reduce_mean(ops.power(x, np.float32(2)), _whole([-1]), keep_dims=True)
        scale = ops.divide(np.float32(1), ops.sqrt(ops.add(mean, np.float32(self._config["rms_norm_eps"]))))
        return ops.multiply(ops.multiply(x, scale), ops.constant(self._tensors[f"{name}.weight"].reshape(1, 1, -1)))

    def _linear(self, x: Any, name: str) -> Any:
        return ops.matmul(x, self._matrix(f"{name}.weight"), transpose_a=False, transpose_b=True)

    def _matrix(self, name: str) -> Any:
        values = self._tensors[name]
        if not self._groups:
            return ops.constant(values)
        codes, scales = _quantized(values, self._groups)
        numbers = ops.multiply(ops.convert(ops.constant(codes), "f32"), ops.convert(ops.constant(scales), "f32"))
        return ops.reshape(numbers, _whole(values.shape), False)


def _quantized(values: Floats, groups: int) -> tuple[Any, Any]:
    """Codes of eight bits [rows, groups, numbers of a group], and the scale of each group."""
    split = values.reshape(len(values), -1, groups)
    scales = (np.abs(split).max(-1, keepdims=True) / 127).astype(np.float16)
    return np.rint(split / scales).astype(np.int8), scales


def _variable(name: str, shape: list[int]) -> Any:
    info = ov.op.util.VariableInfo()
    info.data_shape, info.data_type, info.variable_id = ov.PartialShape(shape), ov.Type.f32, name
    return ov.op.util.Variable(info)


def _length(x: Any, axis: int) -> Any:
    return ops.gather(ops.shape_of(x), _whole([axis]), _whole(0))


def _input(name: str, shape: list[int], kind: Any = ov.Type.i64) -> Any:
    parameter = ops.parameter(shape, kind, name=name)
    parameter.output(0).set_names({name})
    return parameter


def _whole(values: Any) -> Any:
    return ops.constant(np.array(values, np.int64))
