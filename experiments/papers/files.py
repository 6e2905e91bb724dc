"""Read the tables from their files, check them, and pick those that a user names."""

import tomllib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec

from experiments import HERE
from experiments.papers.table import Table, matches
from fedapps.core.errors import RunError
from fedapps.core.words import did_you_mean

FIELDS = {field.name for field in fields(Table)} - {"name"}


def tables() -> dict[str, Table]:
    """Read all tables; raises `RunError` for an invalid one."""
    found = {}
    for path in sorted((HERE / "tables").glob("*.toml")):
        try:
            table = msgspec.convert({**_parsed(path), "name": path.stem}, Table)
        except msgspec.ValidationError as error:
            raise RunError(f"{path.name}: {error}") from error
        _check_names(path.name, table)
        found[path.stem] = table
    return found


def pick(names: Iterable[str]) -> list[Table]:
    """Return the tables that names stand for; raises `RunError` for an unknown name.

    `fedseq-bases` stands for this table, `fedseq` for all tables whose names begin with `fedseq-`,
    and `all` for all tables. A table's whole name never stands for others that begin with it.
    """
    known, found = tables(), dict[str, Table]()
    for name in names:
        alike = [other for other in known if name == "all" or other.startswith(f"{name}-")]
        alike = [name] if name in known else alike
        if not alike:
            kinds = dict.fromkeys(other.partition("-")[0] for other in known)
            hint = did_you_mean(name, [*kinds, *known])
            several = f"all, the beginning of several names ({', '.join(kinds)})"
            raise RunError(f"table {name}: must be {several}, or one of {', '.join(known)}{hint}")
        found |= {each: known[each] for each in alike}
    return [*found.values()]


def having(known: Sequence[Table], scale: str, only: str) -> list[Table]:
    """Return the tables that have rows of `only`; raises `RunError` for a pattern without a row."""
    cells = [cell for table in known for cell in table.cells(scale)]
    rows = dict.fromkeys(cell.row.name for cell in cells)
    _check_patterns(f"scale {scale}: row", only, rows, [cell.name for cell in cells])
    return [table for table in known if table.cells(scale, only)]


def single(name: str) -> Table:
    """Return the table of a name; raises `RunError` if it stands for no table or for several."""
    found = pick([name])
    if len(found) > 1:
        names = ", ".join(table.name for table in found)
        raise RunError(f"table {name}: must be a single table, one of {names}")
    return found[0]


def _parsed(path: Path) -> dict[str, Any]:
    content = _loaded(path)
    each = content.pop("each_row", {})
    if other := content.pop("like", ""):
        alike = path.with_name(f"{other}.toml")
        theirs: dict[str, Any] = _loaded(alike) if alike.is_file() else {"like": ""}
        if "like" in theirs:
            raise RunError(f"{path.name}: like {other}: must be a table that is not like another")
        each = theirs.pop("each_row", {}) | each
        rows = _merged(theirs.get("rows", []), content.get("rows", []))
        content = theirs | content | {"rows": rows}
    if unknown := [key for key in content if key not in FIELDS]:
        raise RunError(f"{path.name}: unknown field {unknown[0]}{did_you_mean(unknown[0], FIELDS)}")
    return content | {"rows": [_row(each, row) for row in content.get("rows", [])]}


def _merged(theirs: list[dict[str, Any]], own: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return another table's rows, changed by those that have the same name, and all others."""
    rows = {row.get("name"): row for row in theirs}
    for row in own:
        rows[row.get("name")] = rows.get(row.get("name"), {}) | row
    return [*rows.values()]


def _loaded(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise RunError(f"{path.name}: {error}") from error


def _row(each: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with what each row of its table has; a search with no values for a key has none.

    So `finetune-epochs = []` takes this key out of the search of one row.
    """
    search = each.get("search", {}) | row.get("search", {})
    searched = {"search": {key: values for key, values in search.items() if values}}
    return each | row | (searched if search else {})


def _check_names(file: str, table: Table) -> None:
    """Raise `RunError` for rows of the same name, and for names and patterns that match nothing."""
    names, columns = [row.name for row in table.rows], [*table.columns] or [""]
    if len(set(names)) != len(names):
        raise RunError(f"{file}: two rows have the same name")
    named = [("a claim", n) for c in table.claims for n in (c.better, *c.than, *c.published)]
    named += [(f"row {row.name}", row.worst.row) for row in table.rows if row.worst]
    for who, name in named:
        if name not in names:
            unknown = f"{who} names row {name}, which does not exist"
            raise RunError(f"{file}: {unknown}{did_you_mean(name, names)}")
    for scale, part in table.scales.items():
        _check_patterns(f"{file}: scale {scale}: row", part.rows, names)
        _check_patterns(f"{file}: scale {scale}: column", part.columns, columns)
    for row in table.rows:
        _check_patterns(f"{file}: row {row.name}: column", row.columns, columns)
    for claim in table.claims:
        _check_patterns(f"{file}: claim {claim.says}: column", claim.columns, columns)


def _check_patterns(
    where: str, patterns: str, names: Collection[str], others: Collection[str] = ()
) -> None:
    """Raise `RunError` for a pattern that matches none of the names (nor of the others)."""
    for pattern in patterns.split(","):
        if not any(matches(name, pattern) for name in (*names, *others)):
            allowed = f"must match one of {', '.join(names)}{did_you_mean(pattern, names)}"
            raise RunError(f"{where} {pattern}: {allowed}")
