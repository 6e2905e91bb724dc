"""Classify images with the trained model of a run or of a device.

This prints a line for each image: its number, its predicted class, and the probability of this
class.

    fedapps predict ~/fedapps-runs/mine --client 7 --input images.npz
    fedapps predict /var/lib/fedapps --input images.npz --output predictions.npz
"""

import argparse

from fedapps.cli.chosen_model import add_model_arguments, path, read_model
from fedapps.core.errors import RunError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_model_arguments(parser)
    parser.add_argument(
        "--input",
        type=path,
        required=True,
        metavar="IMAGES.npz",
        help="a file with the images in its array images or test_images",
    )
    parser.add_argument(
        "--output",
        type=path,
        metavar="PREDICTIONS.npz",
        help="write labels, probabilities and class names to this file instead of printing lines",
    )


def run(options: argparse.Namespace) -> int:
    """Print a line per image with its class and probability, or where they were written."""
    if options.output and options.output.suffix != ".npz":
        raise RunError(f"--output {options.output}: must end in .npz")
    from fedapps.device import personalized

    model = read_model(options)
    probabilities, names = personalized.predict(model, options.input), model.about.names
    if options.output:
        personalized.save_predictions(options.output, probabilities, names)
        print(options.output)
        return 0
    for row, chances in enumerate(probabilities):
        print(f"{row} {names[chances.argmax()]} {chances.max():.3f}")
    return 0
