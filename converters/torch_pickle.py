"""The pickle inside a PyTorch file, interpreted without executing anything of it.

A pickle is a program for a stack machine, which may call any function of Python. This machine knows the instructions
that `torch.save` writes for a dictionary of tensors, and the few names that it calls; it never imports a name. See
https://docs.python.org/3/library/pickletools.html and torch/_weights_only_unpickler.py of PyTorch.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from edgespec.converters.stored_tensor import check_name
from edgespec.errors import ConversionError

_DEEPEST = 100_000  # objects on the stack; torch.save puts about 2,000 there

#: The dtypes of safetensors by PyTorch's class of storages.
_STORAGES = {
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "DoubleStorage": "F64",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
}


@dataclass(frozen=True, slots=True)
class Storage:
    """Numbers in the archive's entry `data/{key}`."""

    dtype: str
    key: str
    count: int


@dataclass(frozen=True, slots=True)
class PickledTensor:
    """A view of a storage; `offset` and `strides` count numbers."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Name:
    """A global name of the pickle, which is compared and never looked up."""

    text: str


class _Mark:
    """Where the arguments of an instruction begin on the stack."""


_Dict = dict[str, Any]


def tensors(data: bytes, source: str) -> Mapping[str, PickledTensor]:
    """The tensors of the dictionary that is pickled in `data`, in its order.

    ConversionError, which begins with `source`, for any other pickle.
    """
    try:
        found = _Machine().result(data)
    except ConversionError as error:
        raise ConversionError(f"{source}: {error}") from error
    except (ValueError, TypeError, IndexError, KeyError, OverflowError, RecursionError, UnicodeError) as error:
        raise ConversionError(f"{source}: its pickle is damaged: {error}; fetch the file again") from error
    if not isinstance(found, dict):
        raise ConversionError(f"{source} holds no dictionary of tensors; save model.state_dict() of it")
    for name, value in found.items():
        check_name(name, source)
        if not isinstance(value, PickledTensor):
            kind = "a dictionary" if isinstance(value, dict) else "something else"
            raise ConversionError(
                f"{source} holds {kind} under {name!r}, expected only tensors; save model.state_dict() of it"
            )
    return found


class _Machine:
    """The stack machine. Objects are those of JSON, tuples, and the records above."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def result(self, data: bytes) -> Any:
        """What the pickle stands for."""
        for opcode, argument, _ in pickletools.genops(io.BytesIO(data)):
            if len(self._stack) > _DEEPEST:
                raise ConversionError(f"its pickle needs more than {_DEEPEST:,} objects at once; fetch the file again")
            if opcode.name == "STOP":
                return self._pop()
            self._step(opcode.name, argument)
        raise ValueError("it has no end")

    def _step(self, name: str, argument: Any) -> None:
        if name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name]())
        elif name in _LITERALS:
            self._stack.append(argument)
        elif name in _ACTIONS:
            _ACTIONS[name](self)
        elif name in _WITH_ARGUMENT:
            _WITH_ARGUMENT[name](self, argument)
        elif name not in _IGNORED:
            raise ConversionError(
                f"its pickle has the instruction {name}, which no dictionary of tensors needs; nothing was executed; "
                "take a file of safetensors"
            )

    def _pop(self) -> Any:
        if not self._stack or isinstance(self._stack[-1], _Mark):
            raise ValueError("an instruction lacks its operand")
        return self._stack.pop()

    def _marked(self) -> list[Any]:
        """The objects above the last mark."""
        place = len(self._stack) - 1
        while place >= 0 and not isinstance(self._stack[place], _Mark):
            place -= 1
        if place < 0:
            raise ValueError("an instruction lacks its mark")
        found = self._stack[place + 1 :]
        del self._stack[place:]
        return found

    def named(self, argument: str) -> None:
        self._stack.append(_Name(argument.replace(" ", ".", 1)))

    def named_by_stack(self) -> None:
        name, module = _typed(self._pop(), str), _typed(self._pop(), str)
        self._stack.append(_Name(f"{module}.{name}"))

    def put(self, argument: int | None) -> None:
        top = self._pop()
        self._memo[len(self._memo) if argument is None else argument] = top
        self._stack.append(top)

    def get(self, argument: int) -> None:
        self._stack.append(self._memo[argument])

    def some(self, count: int) -> None:
        self._stack.append(tuple(reversed([self._pop() for _ in range(count)])))

    def tuple_of_marked(self) -> None:
        self._stack.append(tuple(self._marked()))

    def append(self) -> None:
        last = self._pop()
        _typed(self._top(), list).append(last)

    def append_all(self) -> None:
        more = self._marked()
        _typed(self._top(), list).extend(more)

    def set(self) -> None:
        value, key = self._pop(), self._pop()
        _add(_typed(self._top(), dict), key, value)

    def set_all(self) -> None:
        pairs = self._marked()
        target = _typed(self._top(), dict)
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            _add(target, key, value)

    def build(self) -> None:
        """Attributes of the dictionary, such as the versions of its modules: not needed."""
        _typed(self._pop(), dict)
        _typed(self._top(), dict)

    def call(self) -> None:
        arguments, function = _typed(self._pop(), tuple), _typed(self._pop(), _Name)
        if function.text not in _FUNCTIONS:
            raise _foreign(function)
        self._stack.append(_FUNCTIONS[function.text](*arguments))

    def persistent(self) -> None:
        word, kind, key, _, count = _typed(self._pop(), tuple)
        name = _typed(kind, _Name)
        module, _, storage = name.text.rpartition(".")
        if word != "storage" or module not in {"torch", "torch.storage"} or storage not in _STORAGES:
            raise _foreign(name)
        self._stack.append(Storage(_STORAGES[storage], _typed(key, str), _count(count)))

    def _top(self) -> Any:
        top = self._pop()
        self._stack.append(top)
        return top


def _foreign(name: _Name) -> ConversionError:
    return ConversionError(
        f"its pickle calls for {name.text!r:.80}, which is no part of a dictionary of tensors; nothing was executed; "
        "take a file of safetensors"
    )


def _typed(value: Any, kind: type[Any]) -> Any:
    if type(value) is not kind:
        raise TypeError(f"it has a {type(value).__name__.strip('_')} where a {kind.__name__.strip('_')} belongs")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError("it has a size that cannot be")
    return value


def _add(target: _Dict, key: Any, value: Any) -> None:
    if not isinstance(key, str):
        raise TypeError("it has a name that is no text")
    if key in target:
        raise ConversionError(f"its pickle has the name {key!r:.80} twice; fetch the file again")
    target[key] = value


def _ordered(pairs: Any = ()) -> _Dict:
    found: _Dict = {}
    for key, value in pairs:
        _add(found, key, value)
    return found


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> PickledTensor:
    sizes = tuple(_count(size) for size in _typed(shape, tuple))
    steps = tuple(_count(step) for step in _typed(strides, tuple))
    if len(sizes) != len(steps):
        raise ValueError("a tensor has another number of strides than of axes")
    return PickledTensor(_typed(storage, Storage), _count(offset), sizes, steps)


def _parameter(value: Any, *_: Any) -> PickledTensor:
    found: PickledTensor = _typed(value, PickledTensor)
    return found


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "collections.OrderedDict": _ordered,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_parameter": _parameter,
}
_CONSTANTS: Mapping[str, Callable[[], Any]] = {
    "MARK": _Mark,
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
}
_LITERALS = {
    "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT",
    "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINSTRING", "SHORT_BINSTRING",
}  # fmt: skip
_IGNORED = {"PROTO", "FRAME"}  # the version of the pickle, and the length of a part of it
_WITH_ARGUMENT: Mapping[str, Callable[[_Machine, Any], None]] = {
    "GLOBAL": _Machine.named,
    "BINPUT": _Machine.put,
    "LONG_BINPUT": _Machine.put,
    "MEMOIZE": _Machine.put,
    "BINGET": _Machine.get,
    "LONG_BINGET": _Machine.get,
}
_ACTIONS: Mapping[str, Callable[[_Machine], None]] = {
    "STACK_GLOBAL": _Machine.named_by_stack,
    "TUPLE": _Machine.tuple_of_marked,
    "TUPLE1": lambda machine: machine.some(1),
    "TUPLE2": lambda machine: machine.some(2),
    "TUPLE3": lambda machine: machine.some(3),
    "APPEND": _Machine.append,
    "APPENDS": _Machine.append_all,
    "SETITEM": _Machine.set,
    "SETITEMS": _Machine.set_all,
    "BUILD": _Machine.build,
    "REDUCE": _Machine.call,
    "BINPERSID": _Machine.persistent,
}
