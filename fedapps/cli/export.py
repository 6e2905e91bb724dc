"""Write the personalized model of a device to a file; the file's suffix says in which form."""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--state-dir", type=Path, required=True, help="the device's state-dir")
    parser.add_argument(
        "--output", type=Path, required=True, metavar="MODEL.safetensors|pt2|onnx", help="the file"
    )


def run(options: argparse.Namespace) -> int:
    """Write the model and print where."""
    from fedapps.device import personalized

    output = options.output.expanduser()
    personalized.export(personalized.load(options.state_dir.expanduser()), output)
    print(output)
    return 0
