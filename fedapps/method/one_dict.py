"""An attribute that stays the dictionary that it is."""

from typing import Generic, TypeVar

Value = TypeVar("Value")


class OneDict(Generic[Value]):
    """An attribute whose dict cannot be replaced, because other objects hold the same one.

    Its entries can change. `self.state |= ...` works, too, because it keeps the dict. `instead`
    says what to do, after the name of the attribute: by default, to update it.
    """

    def __init__(self, instead: str = "") -> None:
        self.instead = instead

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, holder: object, owner: type) -> dict[str, Value]:
        found: dict[str, Value] = vars(holder)[self.name]
        return found

    def __set__(self, holder: object, value: dict[str, Value]) -> None:
        if vars(holder).setdefault(self.name, value) is not value:
            name = f"self.{self.name}"
            instead = self.instead or f"use {name}.update(...)"
            raise AttributeError(f"{name} cannot be replaced; {instead}")
