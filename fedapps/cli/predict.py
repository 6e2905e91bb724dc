"""Classify images with the personalized model of a device: image, class and probability."""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--state-dir", type=Path, required=True, help="the device's state-dir")
    parser.add_argument(
        "--input",
        type=Path,
        required=True,
        metavar="IMAGES.npz",
        help="images under the key images or test_images",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="PREDICTIONS.npz",
        help="write labels, probabilities and class names there; without it a line per image",
    )


def run(options: argparse.Namespace) -> int:
    """Print a line per image, or where the predictions were written."""
    from fedapps.device import personalized

    model = personalized.load(options.state_dir.expanduser())
    probabilities = personalized.predict(model, options.input.expanduser())
    names = model.about.names
    if options.output:
        output = options.output.expanduser()
        personalized.save_predictions(output, probabilities, names)
        print(output)
        return 0
    for row, chances in enumerate(probabilities):
        print(f"{row} {names[chances.argmax()]} {chances.max():.3f}")
    return 0
