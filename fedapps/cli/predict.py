"""Predict with the trained model of a run or of a device.

This prints a line for each sample: its number, and what the model predicts. For classes, that is
the most probable one and its probability; otherwise the labels that apply, numbers, or tokens. With
`--output`, the same goes into a table, or all probabilities into an .npz.

    fedapps predict ~/fedapps-runs/mine --client 7 --input images.npz
    fedapps predict ~/fedapps-runs/mine --client Hungary --input patients.csv --output found.csv
    fedapps predict /var/lib/fedapps --input images.npz --output predictions.npz
"""

import argparse
import sys

from fedapps.cli.chosen_model import add_model_arguments, read_model
from fedapps.core.errors import RunError, printable
from fedapps.core.paths import expanded


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_model_arguments(parser)
    parser.add_argument(
        "--input",
        type=expanded,
        required=True,
        metavar="SAMPLES",
        help="a table with the columns of the run's, a picture or a folder of pictures, or an .npz"
        " with the samples in its array images or test_images (inputs, test_inputs)",
    )
    parser.add_argument(
        "--output",
        type=expanded,
        metavar="PREDICTIONS.csv|npz",
        help="write to this file instead of lines: a table with a row for each sample, or arrays"
        " with all probabilities and class names",
    )


def run(options: argparse.Namespace) -> int:
    """Print a line per sample with its prediction, or where they were written."""
    if options.output and options.output.suffix not in (".csv", ".npz"):
        raise RunError(f"--output {options.output}: must end in .csv or .npz")
    from fedapps.data.forms.form import TABLES, kind_of
    from fedapps.device import personalized, predictions

    model = read_model(options)
    found = personalized.predict(model, options.input, tell=_note)
    shape = model.about.inputs.shape
    if model.about.columns and len(shape) > 1 and kind_of(options.input) in TABLES:
        _note(f"sample 0 is the first {shape[0]} rows, sample 1 the next ones, and so on")
    if options.output:
        predictions.save(options.output, model.about, *found)
        print(options.output)
        return 0
    for line in predictions.lines(model.about, *found):
        print(printable(line))  # names of classes can be a stranger's
    return 0


def _note(line: str) -> None:
    print(f"note: {printable(line)}", file=sys.stderr)
