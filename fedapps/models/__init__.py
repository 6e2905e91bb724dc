"""The models: ours are plain `nn.Sequential`s, whose named children are the layers, in order.

torchvision's and one's own can be any module with named layers (`fedapps.models.layers`).

Every layer has parameters. The last layer computes the outputs from what the one before it returns,
[N, features], or [N, T, features] where there is an output for each step. State-dict keys have the
form `layer.module.name`: `conv1.conv.weight`, `conv1.bn.running_mean`, `fc2.fc.weight`.
`fedapps.models.layers` says what of a model may travel.

    model = build("cnn", (1, 28, 28), 10, seed=0)
    [name for name, _ in model.named_children()]  # ['conv1', 'conv2', 'fc1', 'fc2']

A new family of models needs one file with its `MODELS`, and a line in `fedapps.models.zoo`. A model
of one's own needs a file in the folder `models/` beside `fedapps/` (`fedapps.models.own`).
"""

from fedapps.models.blocks import ModelSpec, Shape
from fedapps.models.grouping import declare_part
from fedapps.models.zoo import MODELS, build, of_file, size, spec_of

__all__ = ["MODELS", "ModelSpec", "Shape", "build", "declare_part", "of_file", "size", "spec_of"]
