"""What can be learned: classes, numbers, several labels, the next token.

    task = task_for("auto", inputs, targets)   # by the targets of a data set
    task.loss(output, target), task.predict(output), task.lead.of(task.count(output, target))

A new task needs one file here, a line in `TASKS`, and its name among the values of the key `task`
in `fedapps.core.data_settings`.
"""

from collections.abc import Sequence

from fedapps.core.errors import RunError
from fedapps.core.settings import Settings
from fedapps.core.words import some
from fedapps.data.spec import BYTES, WHOLE, Spec
from fedapps.tasks.classification import Classification
from fedapps.tasks.metric import Counts, Metric
from fedapps.tasks.multilabel import Multilabel
from fedapps.tasks.regression import Regression
from fedapps.tasks.task import AUTO, Task
from fedapps.tasks.tokens import Tokens

CLASSIFICATION = Classification()
TASKS: dict[str, Task] = {
    task.name: task for task in (CLASSIFICATION, Regression(), Multilabel(), Tokens())
}

__all__ = [
    "AUTO",
    "CLASSIFICATION",
    "TASKS",
    "Counts",
    "Metric",
    "Task",
    "specs_of_devices",
    "task_for",
]


def task_for(
    name: str,
    inputs: Spec,
    targets: Spec,
    data: str,
    names: Sequence[str] = (),
    truths: bool = False,
) -> Task:
    """Return the task of this name; `auto` finds it by the targets of the data set `data`.

    Floats are a regression; a label for each sample is a classification; truth values are
    multilabel, also if there are as many as steps, if labels have `names` or were booleans
    (`truths`); a whole number for each step is tokens. Raises `RunError` if the targets do not fit,
    with `names` of classes.
    """
    task = TASKS[name] if name != AUTO else _by_targets(inputs, targets, bool(names) or truths)
    try:
        task.check(targets, inputs)
    except ValueError as error:
        found = f"{targets.dtype} [N{''.join(f', {side}' for side in targets.shape)}]"
        how = " (which auto takes by the targets)" if name == AUTO else ""
        called = f" (classes: {some(names)})" * bool(names)
        raise RunError(
            f'task = "{task.name}"{how}: {error}; those of {data} are {found}{called}'
        ) from error
    return task


def specs_of_devices(settings: Settings) -> tuple[Spec, Spec]:
    """Return what the inputs and targets of devices are; `auto` is a classification there.

    Raises `RunError` for a shape that cannot be, and for texts in several columns.
    """
    task = TASKS.get(settings.task, CLASSIFICATION)
    if settings.text_length:
        if "," in settings.columns:
            rule = f"text-length = {settings.text_length} reads one column of texts"
            raise RunError(f'columns = "{settings.columns}": {rule}; name this one alone')
        inputs = Spec((settings.text_length,), WHOLE, BYTES)
        next_token = settings.task == "tokens"
        return inputs, inputs if next_token else task.declared((1,), settings.num_classes)[1]
    return task.declared(settings.shape, settings.num_classes)


def _by_targets(inputs: Spec, targets: Spec, are_labels: bool) -> Task:
    if not targets.is_whole:
        return TASKS["regression"]
    if not targets.shape:
        return CLASSIFICATION
    steps = inputs.is_whole and inputs.shape == targets.shape and not are_labels
    return TASKS["tokens" if steps or targets.choices > 2 else "multilabel"]
