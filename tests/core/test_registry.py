"""Methods are found by their modules; nothing in fedapps/ knows one by name."""

import ast
import re
import types
from pathlib import Path
from typing import Annotated

import msgspec
import pytest
from flwr.client import NumPyClient
from flwr.serverapp.strategy import Strategy

import clients
import fedapps
import strategies
from fedapps.core import config, project, registry, schema
from fedapps.core.errors import RunError
from fedapps.method.flower import BaseClient, BaseStrategy

FEDAPPS = Path(fedapps.__file__).parent
# Words of the run-config that are also a method's name: `bn-stats = "local"` is FedBN's sense.
SHARED_WORDS = {"local"}


def modules(package):
    paths = Path(package.__path__[0]).glob("*.py")
    return {path.stem for path in paths if not path.stem.startswith("_")}


def test_methods_are_the_modules_of_strategies_each_with_its_twin():
    assert registry.names() == tuple(sorted(modules(strategies)))
    assert modules(strategies) == modules(clients)
    assert len(registry.names()) >= 6


@pytest.mark.parametrize("name", registry.names())
def test_a_method_is_one_strategy_and_one_client(name):
    strategy, client = registry.strategy_class(name), registry.client_class(name)
    assert (strategy.__module__, client.__module__) == (f"strategies.{name}", f"clients.{name}")
    assert issubclass(strategy, BaseStrategy)
    assert issubclass(strategy, Strategy)
    assert issubclass(client, BaseClient)
    assert issubclass(client, NumPyClient)
    assert strategy.citation.strip()
    assert strategy.exchanges.strip()
    assert strategy.__doc__ and client.__doc__
    assert not strategy.__abstractmethods__


@pytest.mark.parametrize("name", registry.names())
def test_keys_of_a_method_are_those_of_its_settings_or_general_ones(name):
    table = {key.partition(".")[2] for key in config.defaults() if key.startswith(f"{name}.")}
    own = set(registry.settings_class(name).__struct_encode_fields__)
    general = {key for key in config.defaults() if "." not in key} - {"strategy"}
    assert own <= table  # each has its default in pyproject.toml
    assert table <= own | general
    assert not own & general  # a key means one thing


def test_every_table_of_pyproject_is_general_or_belongs_to_a_method():
    tables = {key.partition(".")[0] for key in config.defaults() if "." in key}
    assert tables <= {*registry.names(), *config.TABLES}


def test_a_method_without_keys_has_no_settings():
    assert registry.settings_class("fedavg") is schema.MethodSettings
    assert msgspec.structs.fields(schema.MethodSettings) == ()


@pytest.mark.parametrize("find", ["strategy_class", "client_class", "settings_class"])
@pytest.mark.parametrize("name", ["nope", "", "__init__", "os", "strategies.fedavg"])
def test_what_is_no_method_is_refused_with_the_list(find, name):
    with pytest.raises(RunError) as caught:
        getattr(registry, find)(name)
    line = str(caught.value)
    assert line.startswith(f'strategy = "{name}": ')
    assert line.endswith(f"must be one of {', '.join(registry.names())}")


def make_module(*classes):
    module = types.ModuleType("strategies.fedfoo")
    module.Borrowed = BaseStrategy
    for number, cls in enumerate(classes):
        cls.__module__ = module.__name__
        setattr(module, f"Class{number}", cls)
    return module


def test_a_module_defines_exactly_one_class_of_the_kind(monkeypatch):
    def method():
        return type("Method", (BaseStrategy,), {})

    monkeypatch.setattr(registry, "names", lambda: ("fedfoo",))
    one = method()
    for classes in ([one], [one, type("Helper", (), {})]):
        monkeypatch.setattr(
            registry.importlib, "import_module", lambda _, c=classes: make_module(*c)
        )
        assert registry.strategy_class("fedfoo") is one
    for count in (0, 2):
        module = make_module(*(method() for _ in range(count)))
        monkeypatch.setattr(registry.importlib, "import_module", lambda _, m=module: m)
        with pytest.raises(RunError) as caught:
            registry.strategy_class("fedfoo")
        text = f"strategies.fedfoo: must define one subclass of BaseStrategy, has {count}"
        assert str(caught.value) == text


@pytest.fixture
def with_keys(monkeypatch):
    """Return make(table, **fields): a method fedfoo with these keys, and its table of defaults."""

    def make(table, **fields):
        names = {"__annotations__": {key: float for key in fields}, "__module__": "fedfoo"}
        given = {key: value for key, value in fields.items() if value is not None}
        own = type(schema.MethodSettings)(
            "Settings", (schema.MethodSettings,), names | given, frozen=True
        )
        module = types.ModuleType("fedfoo")
        module.Settings = own
        monkeypatch.setattr(registry, "_module", lambda package, name: module)
        whole = project.run_config() | {"fedfoo": table}
        monkeypatch.setattr(project, "run_config", lambda: whole)
        return own

    return make


def test_a_default_in_the_class_is_refused(with_keys):
    """Without its line in pyproject.toml the key does not exist: no run can set or record it."""
    own = with_keys({"mu-rate": 0.5}, mu_rate=None)
    assert registry.settings_class("fedfoo") is own
    with_keys({}, nu=None, mu_rate=0.5)
    right = (
        r"^strategies/fedfoo.py: mu_rate has a default in the class Settings; its default belongs "
        r"in pyproject.toml: mu-rate = 0.5 in \[tool.flwr.app.config.fedfoo\]$"
    )
    with pytest.raises(RunError, match=right):
        registry.settings_class("fedfoo")


def test_so_is_one_before_a_key_without(monkeypatch):
    """The class cannot be made then, so its module cannot be loaded."""

    def load(name):
        class Settings(schema.MethodSettings, frozen=True):
            mu_rate: float = 0.5
            own_share: float

    monkeypatch.setattr(registry.importlib, "import_module", load)
    monkeypatch.setattr(registry, "names", lambda: ("fedfoo",))
    right = (
        r"^strategies/fedfoo\.py: a key before own_share has a default in the class Settings; its "
        r"default belongs in pyproject\.toml, in \[tool\.flwr\.app\.config\.fedfoo\]$"
    )
    for look in (registry.strategy_class, registry.client_class, registry.settings_class):
        with pytest.raises(RunError, match=right):
            look("fedfoo")


@pytest.mark.parametrize(
    "default", [msgspec.field(default=None), msgspec.field(default_factory=dict), [], (1, 2)]
)
def test_so_is_one_that_no_key_can_have(with_keys, default):
    with_keys({}, mu_rate=default)
    with pytest.raises(RunError) as caught:
        registry.settings_class("fedfoo")
    assert str(caught.value) == (
        "strategies/fedfoo.py: mu_rate has a default in the class Settings; its default belongs in "
        "pyproject.toml: mu-rate = ... in [tool.flwr.app.config.fedfoo]; must be one value: "
        "an int, a float, a text, true or false"
    )


def test_a_type_that_could_be_none_is_told_without_it():
    """A run-config has no None, so a key of such a type is one of the rest."""

    class Settings(schema.MethodSettings, frozen=True):
        cap: Annotated[schema.Count | None, schema.doc("cap")]

    assert schema.kind_of(schema.fields(Settings)["cap"]) == "int >= 1"
    with pytest.raises(RunError, match=r"^fedfoo\.cap = 0: must be int >= 1$"):
        schema.convert({"cap": 0}, Settings, "fedfoo.")


def test_a_key_of_pyproject_that_the_method_does_not_have_is_refused(with_keys):
    """A general one gives it another default; others would be read by nobody."""
    own = with_keys({"lr": 0.5, "mu": 0.1}, mu=None)
    assert registry.settings_class("fedfoo") is own
    with_keys({"mu_rate": 2, "mu-rate": 0.1}, mu_rate=None)
    right = (
        r"^pyproject.toml: \[tool.flwr.app.config.fedfoo\] has mu_rate, but strategies/fedfoo.py "
        r"has no such key, did you mean mu-rate\?; rename it, or remove it$"
    )
    with pytest.raises(RunError, match=right):
        registry.settings_class("fedfoo")


def test_a_method_without_its_twin_is_refused(monkeypatch):
    monkeypatch.setattr(registry, "names", lambda: ("fedfoo",))
    with pytest.raises(RunError) as caught:
        registry.client_class("fedfoo")
    assert str(caught.value) == "clients.fedfoo: no such module; method fedfoo needs it"


def test_a_method_that_cannot_import_something_says_what(monkeypatch, tmp_path):
    (tmp_path / "fedfoo.py").write_text("import fedbar_that_is_not_there")
    monkeypatch.setattr(registry, "names", lambda: ("fedfoo",))
    monkeypatch.setattr(clients, "__path__", [str(tmp_path)])
    with pytest.raises(ModuleNotFoundError, match="fedbar_that_is_not_there"):
        registry.client_class("fedfoo")


def code_words(path):
    """Yield (line, word) of everything but comments and docstrings: names and parts of texts."""
    tree = ast.parse(path.read_text("utf-8"))
    prose = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node)
    }
    for node in ast.walk(tree):
        if id(node) in prose:
            continue
        for _, value in ast.iter_fields(node):
            for text in value if isinstance(value, list) else [value]:
                if isinstance(text, str):
                    for word in re.split(r"[^a-z0-9]+", text.lower()):
                        yield getattr(node, "lineno", 0), word


def test_no_file_of_fedapps_names_a_method():
    names, files = set(registry.names()) - SHARED_WORDS, sorted(FEDAPPS.rglob("*.py"))
    found = [(file, *place) for file in files for place in code_words(file) if place[1] in names]
    assert len(files) > 200 and found == []
