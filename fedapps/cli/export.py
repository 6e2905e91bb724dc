"""Write the trained model of a run or of a device to a file.

The suffix of the file name chooses the format: .safetensors (arrays), .pt2 (a program of
torch.export) or .onnx.

    fedapps export ~/fedapps-runs/mine --client 7 --output client-7.pt2
    fedapps export /var/lib/fedapps --output model.safetensors
"""

import argparse

from fedapps.cli.chosen_model import add_model_arguments, read_model
from fedapps.core.paths import expanded


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_model_arguments(parser)
    parser.add_argument(
        "--output",
        type=expanded,
        required=True,
        metavar="MODEL.safetensors|pt2|onnx",
        help="the file to write; its suffix chooses the format",
    )


def run(options: argparse.Namespace) -> int:
    """Write the model and print where."""
    from fedapps.device.exporting import export

    export(read_model(options), options.output)
    print(options.output)
    return 0
