"""Preprocess: files as people have them → a data set for the other verbs. Needs no device.

The box's parameters decide the result: ``max_seq_length`` means sequences of tokens, ``samples`` named arrays,
otherwise normalised float32 rows.

Axes: N samples, F features (28 x 28 grey values, row by row).
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rdukit_modelbox.contract.allowed_values import ParameterValue
from rdukit_modelbox.contract.box import Box, Verb
from rdukit_modelbox.preprocessing.datasets import Samples, save_dataset
from rdukit_modelbox.verbs.context import Progress, VerbContext, VerbResult
from rdukit_zoo.datasets.digits import CLASSES, Bytes, find_idx, load_bundled, load_folder

#: Mean and standard deviation of MNIST's training images on the scale 0..1, as everybody uses them.
MEAN: Final = np.float32(0.1307)
DEVIATION: Final = np.float32(0.3081)

#: Default input; models that read in both directions draw theirs themselves.
DRAWN_CORPUS: Final = "documentation"


def run_preprocess(
    context: VerbContext, parameters: Mapping[str, ParameterValue], inputs: Mapping[str, Path], output: Path
) -> VerbResult:
    """Write ``<output>/dataset``. The result's ``compile_parameters`` are the parameters for compiling a PEF for it.

    Raises:
        NotFound, InvalidArgument: an input is missing or wrong; names file, line or column, and what is legal.
    """
    made = _make_dataset(context, parameters, inputs, output)
    fitting = compile_parameters(context.box, made.figures, parameters)
    if fitting:
        context.log("compile with " + " ".join(f"{name}={value}" for name, value in fitting.items()))
    return VerbResult({**made.figures, "compile_parameters": fitting}, made.outputs)


def compile_parameters(
    box: Box, figures: Mapping[str, object], parameters: Mapping[str, ParameterValue]
) -> dict[str, object]:
    """Choose the parameters of compile that a data set determines, among those of the box. Pure."""
    decided: dict[str, object] = {
        "num_features": figures.get("features"), "num_classes": figures.get("classes"),
        "context_length": parameters.get("max_seq_length"), "vocabulary": figures.get("vocab_size"),
    }  # fmt: skip
    decided |= {p.name: parameters[p.name] for p in box.parameters if p.size and p.name in parameters}
    names = {parameter.name for parameter in box.parameters_of(Verb.COMPILE)}
    return {name: value for name, value in decided.items() if value is not None and name in names}


def _make_dataset(
    context: VerbContext, parameters: Mapping[str, ParameterValue], inputs: Mapping[str, Path], output: Path
) -> VerbResult:
    if "max_seq_length" in parameters:
        # Only text needs tokenizers, h5py and pyarrow.
        from rdukit_modelbox.preprocessing.bundled import with_data, write_corpus
        from rdukit_modelbox.preprocessing.text import preprocess_text

        corpus = str(parameters.get("corpus", DRAWN_CORPUS))
        with with_data(inputs, output, corpus, partial(write_corpus, corpus)) as given:
            return preprocess_text(context, parameters, given, output)
    if "samples" in parameters:
        from rdukit_modelbox.preprocessing.arrays import preprocess_arrays

        corpus = str(parameters.get("corpus", DRAWN_CORPUS))
        if corpus != DRAWN_CORPUS:
            from rdukit_modelbox.preprocessing.bundled import with_data, write_passages

            with with_data(inputs, output, corpus, partial(write_passages, parameters)) as given:
                return preprocess_arrays(context, parameters, given, output)
        return preprocess_arrays(context, parameters, inputs, output)
    if "data" in inputs and not _is_idx(inputs["data"], str(parameters.get("format", "auto"))):
        from rdukit_modelbox.preprocessing.rows import preprocess_rows

        return preprocess_rows(context, parameters, inputs, output)
    if "columns" in parameters:
        from rdukit_modelbox.preprocessing.bundled import with_data, write_digit_table
        from rdukit_modelbox.preprocessing.rows import preprocess_rows

        with with_data(inputs, output, "digits", write_digit_table) as given:
            return preprocess_rows(context, parameters, given, output)
    digits = load_folder(inputs["data"]) if "data" in inputs else load_bundled()
    context.progress(Progress("read", 1, 3))
    context.check_cancelled()
    normalize = str(parameters["normalize"])
    limit = int(parameters["limit"]) or None
    train = prepare(digits.train_images[:limit], digits.train_labels[:limit], normalize)
    test = prepare(digits.test_images[:limit], digits.test_labels[:limit], normalize)
    context.progress(Progress("normalise", 2, 3))
    context.check_cancelled()
    folder = save_dataset(
        output / "dataset", train, test, classes=CLASSES, normalize=normalize, source=digits.source
    )  # fmt: skip
    context.progress(Progress("write", 3, 3))
    context.log(f"{len(train)} images to train, {len(test)} to test, from {digits.source}")
    figures = {
        "train_samples": len(train),
        "test_samples": len(test),
        "features": int(train.features_NF.shape[1]),
        "classes": CLASSES,
        "normalize": normalize,
        "source": digits.source,
    }
    return VerbResult(figures, {"dataset": folder})


def prepare(images_NHW: Bytes, labels_N: NDArray[np.int64], normalize: str) -> Samples:
    """Images [N, H, W] uint8 → rows [N, H*W] float32, on 0..1, and centred for ``mnist``."""
    rows = images_NHW.reshape(len(images_NHW), -1).astype(np.float32) / np.float32(255)
    if normalize == "mnist":
        rows = (rows - MEAN) / DEVIATION
    return Samples(np.ascontiguousarray(rows), np.ascontiguousarray(labels_N))


def _is_idx(data: Path, format: str) -> bool:
    """Return whether ``data`` holds idx files in MNIST's names."""
    if format != "auto":
        return format == "idx"
    return data.is_dir() and find_idx(data, "train-images-idx3-ubyte") is not None
