"""A model as an ONNX file: raw columns in, phi or predictions out, in standard operators.

A silo's file gives its phi, the joined file the predictions of all silos' columns, and the file of the sum the
predictions of all silos' phi. What a part of a model becomes is in :data:`ENCODINGS`, :data:`BLOCKS`, :data:`HEADS` and
:data:`LINKS`: a new kind of column, block or head has one entry there. They go by the exact type: what inherits from a
block may compute something else.
"""

import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import import_module
from itertools import accumulate, chain
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from tdcd.blocks import Cnn, Ensemble, Linear, Mlp
from tdcd.blocks.base import Extended, without_head
from tdcd.core.combine import Sum
from tdcd.core.family.heads import Hidden, Pairs
from tdcd.core.losses import Loss
from tdcd.core.losses.poisson import Poisson
from tdcd.core.objective import Tree
from tdcd.core.trees import named_leaves
from tdcd.prediction.model import Model, SiloModel
from tdcd.prediction.scores import check_without
from tdcd.records.files import SHARED, digest_of, write_durably
from tdcd.tables.cells import LARGEST
from tdcd.tables.encodings import Binned, OneHot, Piecewise, Standardized
from tdcd.tables.rows import Columns

OPSET, ML_OPSET, IR_VERSION = 17, 3, 8
"""Of 2022: runtimes of today and of some years ago read them."""
ML = "ai.onnx.ml"
ROWS = "rows"
"""What files call the number of rows, which is free."""
NO_CLASS = np.iinfo(np.int64).min
"""The class of a row that cannot be predicted, where classes are whole numbers."""
AMOUNT = "an amount: a number, true and false as 1 and 0, a date as days since 1970-01-01; NaN where it is blank"
NAME = "a name, as a text; empty where it is blank"
IMAGES = "images, as numbers"


class Graph:
    """Nodes of standard operators, in the order in which they are computed."""

    def __init__(self) -> None:
        self._onnx = _onnx()
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, Any] = {}

    def add(self, operator: str, *inputs: Any, domain: str = "", **attributes: Any) -> str:
        """A node; its inputs are names, or arrays, which become constants. The name of what it computes."""
        names = [given if isinstance(given, str) else self._constant(given) for given in inputs]
        name = f"/{len(self._nodes)}"
        self._nodes.append(self._onnx.helper.make_node(operator, names, [name], domain=domain, **attributes))
        return name

    def _constant(self, value: Any) -> str:
        # No silo's name begins with a slash, so that no column is called as a node or a constant is.
        name = f"/constant/{len(self._constants)}"
        self._constants.append(self._onnx.numpy_helper.from_array(np.asarray(value), name))
        return name

    def cast(self, value: str, dtype: Any) -> str:
        """The same numbers in another type."""
        return self.add("Cast", value, to=self._type(dtype))

    def _type(self, dtype: Any) -> Any:
        return self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))

    def input(self, name: str, dtype: Any, shape: Sequence[int], about: str) -> str:
        """An input of the file, ``[rows, *shape]``."""
        self._inputs[name] = self._value(name, dtype, shape, about)
        return name

    def output(self, name: str, value: str, dtype: Any, shape: Sequence[int], about: str) -> None:
        """An output of the file, ``[rows, *shape]``."""
        self._nodes.append(self._onnx.helper.make_node("Identity", [value], [name]))
        self._outputs[name] = self._value(name, dtype, shape, about)

    def _value(self, name: str, dtype: Any, shape: Sequence[int], about: str) -> Any:
        return self._onnx.helper.make_tensor_value_info(name, self._type(dtype), [ROWS, *shape], about)

    def side_by_side(self, columns: Sequence[str]) -> str:
        """Columns ``[rows]`` as ``[rows, columns]``."""
        joined = self.add("Concat", *columns, axis=0)
        return self.add("Transpose", self.add("Reshape", joined, np.array([len(columns), -1])), perm=[1, 0])

    def file(self, metadata: Mapping[str, Any]) -> bytes:
        """All of it; the same graph and metadata give the same bytes."""
        helper = self._onnx.helper
        graph = helper.make_graph(
            self._nodes, "tdcd", [*self._inputs.values()], [*self._outputs.values()], self._constants
        )
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(ML, ML_OPSET)]
        version = sys.modules["tdcd"].__version__
        model = helper.make_model(
            graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="tdcd", producer_version=version
        )
        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in metadata.items()}
        helper.set_model_props(model, texts)
        self._onnx.checker.check_model(model, full_check=True)
        content: bytes = model.SerializeToString(deterministic=True)
        return content


class Features(NamedTuple):
    """What columns of one encoding become."""

    values: str
    """``[rows, features]`` in the precision of the model, in the columns' order."""
    refused: str
    """``[rows, columns]``: the cells that ``predict`` refuses."""


class RawColumn(NamedTuple):
    """A raw column of the file."""

    input: str
    encoding: Any


def _amounts(graph: Graph, columns: Sequence[RawColumn], reading: Columns) -> tuple[str, str]:
    """Amounts as ``predict`` reads them, ``[rows, columns]``, NaN where blank; and the cells that it refuses."""
    values = graph.side_by_side([graph.input(column.input, np.float64, (), AMOUNT) for column in columns])
    return _read(graph, values, columns, reading)


def _read(graph: Graph, values: str, columns: Sequence[RawColumn], reading: Columns) -> tuple[str, str]:
    # A date is no number of the table, and never one that stands for a blank.
    numbers = np.array([not getattr(column.encoding, "is_date", False) for column in columns])
    for blank in reading.dialect.blank_numbers:
        is_blank = graph.add("And", graph.add("Equal", values, np.float64(blank)), numbers)
        values = graph.add("Where", is_blank, np.float64(np.nan), values)
    missing = graph.add("IsNaN", values)
    known = graph.add("Where", missing, np.float64(0), values)
    refused = graph.add("Greater", graph.add("Abs", known), np.float64(LARGEST))
    return values, refused if reading.blanks else graph.add("Or", refused, missing)


def _per_feature(graph: Graph, values: str, widths: Sequence[int]) -> tuple[str, str]:
    """The value behind each feature, ``[rows, features]``, and whether it is blank."""
    places = np.repeat(np.arange(len(widths)), widths)
    repeated = values if [*widths] == [1] * len(widths) else graph.add("Gather", values, places, axis=1)
    return repeated, graph.add("IsNaN", repeated)


def _scaled(graph: Graph, columns: Sequence[RawColumn], reading: Columns, dtype: Any) -> Features:
    values, refused = _amounts(graph, columns, reading)
    return Features(_standardised(graph, values, columns, dtype), refused)


def _standardised(graph: Graph, values: str, columns: Sequence[RawColumn], dtype: Any) -> str:
    encodings: list[Standardized] = [column.encoding for column in columns]
    widths = [1 + encoding.indicator for encoding in encodings]
    values, blank = _per_feature(graph, values, widths)

    def of_features(name: str) -> NDArray[np.float64]:
        return np.repeat([float(getattr(encoding, name)) for encoding in encodings], widths)

    known = graph.add("Where", blank, of_features("fill"), values)
    scaled = graph.add("Div", graph.add("Sub", known, of_features("mean")), of_features("scale"))
    marks = np.array([mark for width in widths for mark in (False, True)[:width]])
    scaled = graph.cast(scaled, dtype)
    return graph.add("Where", marks, graph.cast(blank, dtype), scaled) if marks.any() else scaled


def _binned(graph: Graph, columns: Sequence[RawColumn], reading: Columns, dtype: Any) -> Features:
    encodings: list[Binned] = [column.encoding for column in columns]
    values, refused = _amounts(graph, columns, reading)
    widths = [len(encoding.cuts) + 1 + encoding.indicator for encoding in encodings]
    values, blank = _per_feature(graph, values, widths)
    # The feature of blanks is a bin that has no values.
    above = [(-np.inf, *encoding.cuts, *(np.inf,) * encoding.indicator) for encoding in encodings]
    up_to = [(*encoding.cuts, np.inf, *(-np.inf,) * encoding.indicator) for encoding in encodings]
    of_blanks = [
        [0.0] * (len(encoding.cuts) + 1) + [1.0] if encoding.indicator else encoding.shares for encoding in encodings
    ]
    lower = graph.add("Greater", values, np.array([*chain(*above)]))
    upper = graph.add("LessOrEqual", values, np.array([*chain(*up_to)]))
    inside = graph.cast(graph.add("And", lower, upper), dtype)
    return Features(graph.add("Where", blank, np.array([*chain(*of_blanks)], dtype), inside), refused)


def _piecewise(graph: Graph, columns: Sequence[RawColumn], reading: Columns, dtype: Any) -> Features:
    encodings: list[Piecewise] = [column.encoding for column in columns]
    values, refused = _amounts(graph, columns, reading)
    widths = [len(encoding.mean) + encoding.indicator for encoding in encodings]
    values, blank = _per_feature(graph, values, widths)
    # A column without bins, and the feature of blanks, are 0 wherever a value is.
    low, high, mean, off = (np.zeros(sum(widths)) for _ in range(4))
    high += np.inf
    for start, encoding in zip(np.cumsum([0, *widths[:-1]]), encodings, strict=True):
        inner, every = slice(start, start + len(encoding.edges[1:])), slice(start, start + len(encoding.mean))
        low[inner], high[inner], mean[every] = encoding.edges[:-1], encoding.edges[1:], encoding.mean
        off[every] = encoding.mean if encoding.centred else 0
        mean[every.stop : every.stop + encoding.indicator] = 1
    inside = graph.add("Div", graph.add("Sub", values, low), high - low)
    positions = graph.add("Clip", inside, np.float64(0), np.float64(1))
    centred = graph.add("Sub", graph.add("Where", blank, mean, positions), off)
    return Features(graph.cast(centred, dtype), refused)


def _one_hot(graph: Graph, columns: Sequence[RawColumn], reading: Columns, dtype: Any) -> Features:
    nothing, not_allowed = -1, -2
    places, start, widths = [], 0, []
    for name, encoding in columns:
        width = len(encoding.names(""))
        unseen = start + len(encoding.levels) if encoding.other else nothing
        blank = start + width - 1 if encoding.indicator else unseen
        known = {level: start + place for place, level in enumerate(encoding.levels)}
        known |= dict.fromkeys(reading.dialect.blank, blank if reading.blanks else not_allowed)
        texts = graph.input(name, np.str_, (), NAME)
        keys, codes_of = [*known], [*known.values()]
        places.append(
            graph.add("LabelEncoder", texts, domain=ML, keys_strings=keys, values_int64s=codes_of, default_int64=unseen)
        )
        widths.append(width)
        start += width
    codes = graph.side_by_side(places)
    of_features = graph.add("Gather", codes, np.repeat(np.arange(len(widths)), widths), axis=1)
    marks = graph.cast(graph.add("Equal", of_features, np.arange(start)), dtype)
    return Features(marks, graph.add("Equal", codes, np.int64(not_allowed)))


ENCODINGS: Mapping[type, Callable[[Graph, Sequence[RawColumn], Columns, Any], Features]] = {
    Standardized: _scaled,
    Binned: _binned,
    Piecewise: _piecewise,
    OneHot: _one_hot,
}
"""The features of the columns that have an encoding of this type, by how tables are read and the model's precision."""


def _linear(graph: Graph, block: Linear, parameters: Tree, features: str, shape: tuple[int, ...]) -> str:
    return graph.add("MatMul", features, parameters["weight"])


def _mlp(graph: Graph, block: Mlp, parameters: Tree, features: str, shape: tuple[int, ...]) -> str:
    for layer in parameters["hidden"]:
        features = _layer(graph, features, layer)
    return graph.add("MatMul", features, parameters["slice"])


def _layer(graph: Graph, rows: str, layer: Tree) -> str:
    return graph.add("Relu", graph.add("Add", graph.add("MatMul", rows, layer["weight"]), layer["bias"]))


def _ensemble(graph: Graph, block: Ensemble, parameters: Tree, features: str, shape: tuple[int, ...]) -> str:
    rows = graph.add("Unsqueeze", features, np.array([1]))
    for layer in parameters["hidden"]:
        inputs = graph.add("Mul", rows, layer["input"]) if "input" in layer else rows
        products = graph.add("Mul", graph.add("MatMul", inputs, layer["weight"]), layer["output"])
        rows = graph.add("Relu", graph.add("Add", products, layer["bias"]))
    # Not divided afterwards: onnxruntime would make a factor in float32 of it.
    last = np.asarray(parameters["slice"]) / np.asarray(block.members, parameters["slice"].dtype)
    return graph.add("MatMul", graph.add("Reshape", rows, np.array([-1, len(last)])), last)


def _cnn(graph: Graph, block: Cnn, parameters: Tree, features: str, shape: tuple[int, ...]) -> str:
    if parameters["slice"].dtype == np.float64:
        raise ValueError(
            "has a block of kind 'Cnn' in float64, which an ONNX file cannot have, since runtimes convolve in float32: "
            "train with dtype = 'float32'"
        )
    images = graph.add("Reshape", features, np.array([-1, *shape, 1][:4]))
    images = graph.add("Transpose", images, perm=[0, 3, 1, 2])
    for layer in parameters["convolutions"]:
        images = graph.add("Conv", images, np.transpose(layer["weight"], (3, 2, 0, 1)))
        images = graph.add("MaxPool", images, kernel_shape=[2, 2], strides=[2, 2])
        images = graph.add("Relu", graph.add("Add", images, np.reshape(layer["bias"], (1, -1, 1, 1))))
    rows = graph.add("Flatten", graph.add("Transpose", images, perm=[0, 2, 3, 1]))
    return graph.add("MatMul", _layer(graph, rows, parameters["embedding"]), parameters["slice"])


BLOCKS: Mapping[type, Callable[[Graph, Any, Tree, str, tuple[int, ...]], str]] = {
    Linear: _linear,
    Mlp: _mlp,
    Ensemble: _ensemble,
    Cnn: _cnn,
}
"""The phi of a block of this type: its parameters, the features ``[rows, D]``, and the shape of a sample."""


def _sum(graph: Graph, head: Sum, total: str, num_outputs: int, dtype: Any) -> str:
    return total


def _hidden(graph: Graph, head: Hidden, total: str, num_outputs: int, dtype: Any) -> str:
    first, end = np.array([num_outputs]), np.array([head.width(num_outputs)])
    linear = graph.add("Slice", total, np.array([0]), first, np.array([1]))
    units = graph.add("Relu", graph.add("Slice", total, first, end, np.array([1])))
    signs = np.where(np.arange(head.units) % 2 == 0, 1, -1)[:, None]
    of_units = graph.add("MatMul", units, np.kron(signs, np.eye(num_outputs)).astype(dtype))
    return graph.add("Add", linear, of_units)


def _pairs(graph: Graph, head: Pairs, total: str, num_outputs: int, dtype: Any) -> str:
    first, last = np.array([num_outputs]), np.array([head.block_width(num_outputs)])
    linear = graph.add("Slice", total, np.array([0]), first, np.array([1]))
    embedded = graph.add("Slice", total, first, last, np.array([1]))
    squares = graph.add("Slice", total, last, np.array([head.width(num_outputs)]), np.array([1]))
    beyond = graph.add("Sub", _squared_lengths(graph, head, embedded, num_outputs, dtype), squares)
    return graph.add("Add", linear, graph.add("Div", beyond, np.array(2, dtype)))


def _squared_lengths(graph: Graph, head: Pairs, embedded: str, num_outputs: int, dtype: Any) -> str:
    """``[rows, C]`` of e, ``[rows, r C]``."""
    of_scores = np.tile(np.eye(num_outputs, dtype=dtype), (head.rank, 1))
    return graph.add("MatMul", graph.add("Mul", embedded, embedded), of_scores)


def _pairs_phi(graph: Graph, head: Pairs, given: str, num_outputs: int, dtype: Any) -> str:
    first, last = np.array([num_outputs]), np.array([head.block_width(num_outputs)])
    linear = graph.add("Slice", given, np.array([0]), first, np.array([1]))
    embedded = graph.add("Slice", given, first, last, np.array([1]))
    embedded = graph.add("Mul", embedded, np.array(head.rank**-0.5, dtype))
    lengths = _squared_lengths(graph, head, embedded, num_outputs, dtype)
    return graph.add("Concat", linear, embedded, lengths, axis=1)


HEADS: Mapping[type, Callable[[Graph, Any, str, int, Any], str]] = {Sum: _sum, Hidden: _hidden, Pairs: _pairs}
"""The scores ``[rows, C]`` of a head of this type: of the sum of all silos' phi, C, and the type of the numbers."""
EXTENDED: Mapping[type, Callable[[Graph, Any, str, int, Any], str]] = {Pairs: _pairs_phi}
"""The phi of a silo behind a head of this type that has more numbers than a block gives."""


def _by_target(graph: Graph, loss: Loss, scores: str) -> str:
    if loss.target == "amount":
        return scores
    if loss.target == "binary":
        return graph.add("Sigmoid", scores)
    return graph.add("Softmax", scores, axis=1)


def _exponential(graph: Graph, loss: Loss, scores: str) -> str:
    return graph.add("Exp", scores)


LINKS: Mapping[Any, Callable[[Graph, Loss, str], str]] = {
    Loss.inverse_link: _by_target,
    Poisson.inverse_link: _exponential,
}
"""What scores in float64 predict, of losses with this inverse link."""


def write_onnx(
    model: Model, path: Path, silo: str | None = None, *, from_phi: bool = False, without: Collection[str] = ()
) -> None:
    """See :meth:`tdcd.Model.to_onnx`."""
    if path.suffix.lower() != ".onnx":
        raise ValueError(f"{path}: the name of an ONNX file must end in .onnx")
    if silo is not None and (from_phi or without):
        raise ValueError(f"a file of silo '{silo}' alone has no sum: leave out silo, or from_phi and without")
    model.check_complete("an ONNX file")
    content = joined_file(model, without, from_phi=from_phi) if silo is None else silo_file(model, silo)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, content, SHARED)
    except OSError as error:
        why = f"{path.parent} is no folder" if path.parent.is_file() else error.strerror
        raise OSError(f"{path} cannot be written: {why}") from None


def silo_file(model: Model, silo: str) -> bytes:
    """The raw columns of one silo to its phi. What labels mean is not in it."""
    graph, part = Graph(), model.part(silo)
    phi = _phi(graph, silo, part, model.num_outputs)
    about = f"what the columns of silo '{silo}' add to the sum of all silos' phi; NaN where predict would refuse a cell"
    graph.output("phi", phi, model.dtype, (model.phi_width,), about)
    stand_in = {"stand_in": [*model.stand_ins.values[silo]]} if silo in model.stand_ins.values else {}
    return graph.file({"kind": "silo", "silo": silo, **_about(model, [silo]), **stand_in})


def joined_file(model: Model, without: Collection[str] = (), *, from_phi: bool = False) -> bytes:
    """The raw columns of all silos, or their phi, to scores and predictions."""
    model.check_meaning()
    check_without(model.silos, without, ())
    graph, dtype = Graph(), np.dtype(model.dtype)
    total, width = "", (model.phi_width,)
    kept = [silo for silo in model.silos if silo not in without]
    for silo in kept:
        about = f"phi of silo '{silo}', as its own file gives it"
        phi = (
            graph.input(f"{silo}/phi", dtype, width, about)
            if from_phi
            else _phi(graph, silo, model.part(silo), model.num_outputs)
        )
        total = graph.add("Add", total, phi) if total else phi
    for silo in without:
        total = graph.add("Add", total, model.stand_ins.of(silo, dtype))
    if type(model.head) not in HEADS:
        raise ValueError(_refusal(f"a head of kind '{type(model.head).__name__}'", HEADS))
    scores = HEADS[type(model.head)](graph, model.head, total, model.num_outputs, dtype)
    graph.output("scores", scores, dtype, (model.num_outputs,), "of the loss; NaN where predict would refuse a cell")
    _predict(graph, model, scores)
    missing = {"without": [*without]} if without else {}
    about_parts = _about(model, () if from_phi else kept)
    known: dict[str, Any] = {"classes": [*model.label_encoding.classes]} if model.label_encoding.classes else {}
    if model.temperature != 1:
        known["temperature"] = model.temperature
    return graph.file({"kind": "sum" if from_phi else "joined", **about_parts, **known, **missing})


def _predict(graph: Graph, model: Model, scores: str) -> None:
    """The outputs ``prediction`` and, of classes, ``probabilities``."""
    loss, encoding = model.loss, model.label_encoding
    link = LINKS.get(type(loss).inverse_link)
    if link is None:
        raise ValueError(
            f"the {loss.name} loss has an inverse_link of its own, which is Python code: it cannot be in an ONNX file"
        )
    exact = graph.cast(scores, np.float64)
    if model.temperature != 1:
        exact = graph.add("Div", exact, np.float64(model.temperature))
    expected = link(graph, loss, exact)
    if loss.target == "amount":
        amounts = graph.add("Add", graph.add("Mul", expected, np.float64(encoding.scale)), np.float64(encoding.mean))
        about = "the amount in the labels' own unit"
        graph.output("prediction", graph.add("Squeeze", amounts, np.array([1])), np.float64, (), about)
        return
    if loss.target == "binary":
        chosen = graph.cast(graph.add("Squeeze", graph.add("Greater", scores, _zero(model)), np.array([1])), np.int64)
        expected = graph.add("Concat", graph.add("Sub", np.float64(1), expected), expected, axis=1)
    else:
        chosen = graph.add("ArgMax", scores, axis=1, keepdims=0)
    classes = model.classes
    nothing: Any = {"U": "", "i": NO_CLASS}.get(classes.dtype.kind, np.nan)
    # A sum with NaN in it is NaN.
    is_nothing = graph.add("IsNaN", graph.add("ReduceSum", scores, np.array([1]), keepdims=0))
    place = graph.add("Where", is_nothing, np.int64(len(classes)), chosen)
    labels = np.array([*classes.tolist(), nothing], object if classes.dtype.kind == "U" else classes.dtype)
    about = "the class; an empty text, NaN or the least int64 where predict would refuse a cell"
    kind = np.str_ if classes.dtype.kind == "U" else classes.dtype
    graph.output("prediction", graph.add("Gather", labels, place), kind, (), about)
    about = "of every class, in the order of the metadata"
    graph.output("probabilities", expected, np.float64, (len(classes),), about)


def _zero(model: Model) -> NDArray[Any]:
    return np.zeros((), model.dtype)


def _phi(graph: Graph, silo: str, part: SiloModel, num_outputs: int) -> str:
    """``[rows, W]``: one silo's phi from its raw columns; NaN in rows with a cell that ``predict`` refuses."""
    block, encodings = without_head(part.block), part.preparation.parts
    kind = type(block)
    if kind not in BLOCKS:
        raise ValueError(f"silo '{silo}' has " + _refusal(f"a block of kind '{kind.__name__}'", BLOCKS))
    dtype = jax.tree.leaves(part.parameters)[0].dtype
    is_image = len(part.feature_shape) > 1
    columns = [RawColumn(f"{silo}/{name}", encoding) for name, encoding in encodings.items()]
    groups: dict[type, list[RawColumn]] = {}
    for name, column in zip(encodings, columns, strict=True):
        if type(column.encoding) not in ENCODINGS:
            what = f"an encoding of kind '{type(column.encoding).__name__}'"
            raise ValueError(f"silo '{silo}', column '{name}' has " + _refusal(what, ENCODINGS))
        groups.setdefault(type(column.encoding), []).append(column)
    if is_image:
        images = graph.input(f"{silo}/images", np.float64, part.feature_shape, IMAGES)
        flat = graph.add("Reshape", images, np.array([-1, prod(part.feature_shape)]))
        values, refused = _read(graph, flat, columns, part.columns)
        written = [Features(_standardised(graph, values, columns, dtype), refused)]
    else:
        written = [ENCODINGS[kind](graph, group, part.columns, dtype) for kind, group in groups.items()]
    features = _in_order(graph, encodings, groups, [column.values for column in written])
    if part.num_ones:
        features = graph.add("Pad", features, np.array([0, 0, 0, part.num_ones]), np.ones((), dtype))
    try:
        phi = BLOCKS[kind](graph, block, jax.tree.map(np.asarray, part.parameters), features, part.feature_shape)
    except ValueError as error:
        raise ValueError(f"silo '{silo}' {error}") from None
    if isinstance(part.block, Extended):
        head = part.block.combine
        if type(head) not in EXTENDED:
            raise ValueError(_refusal(f"a head of kind '{type(head).__name__}'", HEADS))
        phi = EXTENDED[type(head)](graph, head, phi, num_outputs, dtype)
    refused = graph.add("Concat", *(column.refused for column in written), axis=1)
    any_refused = graph.add("ReduceMax", graph.cast(refused, np.float32), axes=[1], keepdims=1)
    return graph.add("Where", graph.cast(any_refused, np.bool_), np.array(np.nan, dtype), phi)


def _in_order(
    graph: Graph, encodings: Mapping[str, Any], groups: Mapping[type, Sequence[RawColumn]], values: Sequence[str]
) -> str:
    """The features of all groups in the order of the preparation."""
    joined = values[0] if len(values) == 1 else graph.add("Concat", *values, axis=1)
    widths = {name: len(part.names(name)) for name, part in encodings.items()}
    by_group = [name for kind in groups for name, part in encodings.items() if type(part) is kind]
    starts = dict(zip(by_group, accumulate((widths[name] for name in by_group), initial=0), strict=False))
    places = [starts[name] + place for name in encodings for place in range(widths[name])]
    return joined if places == [*range(len(places))] else graph.add("Gather", joined, np.array(places), axis=1)


def _refusal(what: str, known: Mapping[type, Any]) -> str:
    kinds = ", ".join(kind.__name__ for kind in known)
    return f"{what}, which an ONNX file cannot have; it can have {kinds}"


def _about(model: Model, silos: Collection[str]) -> dict[str, Any]:
    """What the metadata says besides the kind of the file: of these silos' columns, and of the model."""
    columns = {
        silo: {
            name: "name" if isinstance(part, OneHot) else "amount"
            for name, part in model.part(silo).preparation.parts.items()
        }
        for silo in silos
    }
    return {
        "tdcd_version": sys.modules["tdcd"].__version__,
        "silos": [*model.silos],
        "columns": columns,
        "loss": model.loss.name,
        "dtype": model.dtype,
        "head": model.head.keys.get("head", "sum"),
        "digests": {silo: _digest(model.part(silo)) for silo in silos},
    }


def _digest(part: SiloModel) -> str:
    """Of all that a silo's phi depends on: a silo's own file and the joined one have the same if they fit."""
    tensors = {leaf: np.asarray(value) for leaf, value in named_leaves(part.parameters).items()}
    words = [part.preparation.to_json(), part.columns.reading, [*part.feature_shape], repr(part.block)]
    return digest_of(words, tensors)


def _onnx() -> Any:
    try:
        onnx = import_module("onnx")
        for name in ("checker", "helper", "numpy_helper"):
            import_module(f"onnx.{name}")
    except ModuleNotFoundError:
        raise ModuleNotFoundError("an ONNX file needs the onnx package: pip install 'tdcd[onnx]'") from None
    return onnx
