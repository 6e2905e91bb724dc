"""A table in each form of file that a data set can have."""

from tests.support.marks import extra


def save(frame, folder, kind, name="t"):
    """Write a table as CSV, Parquet or a folder of `datasets`; return its path."""
    path = folder / f"{name}.{kind}"
    if kind == "csv":
        frame.to_csv(path, index=False)
    elif kind == "datasets":
        datasets = extra("datasets")
        datasets.disable_progress_bars()
        datasets.Dataset.from_pandas(frame).save_to_disk(path)
    else:
        extra("pyarrow")
        frame.to_parquet(path)
    return path
