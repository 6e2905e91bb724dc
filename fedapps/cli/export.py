"""`fedapps export`: write a model of a finished run or of a device to a file."""

import argparse

from fedapps.cli.chosen_model import add_model_arguments, path, read_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_model_arguments(parser)
    parser.add_argument(
        "--output",
        type=path,
        required=True,
        metavar="MODEL.safetensors|pt2|onnx",
        help="the file to write; its suffix says what is written",
    )


def run(options: argparse.Namespace) -> int:
    """Write the model and print where."""
    from fedapps.device import personalized

    personalized.export(read_model(options), options.output)
    print(options.output)
    return 0
