"""The pages are true: links lead somewhere, keys exist, commands are valid, and code runs."""

import argparse
import ast
import importlib
import re
import shlex
import sys
import tomllib
from functools import cache
from itertools import pairwise

import msgspec
import numpy as np
import pytest
import torch

import clients
import experiments.__main__ as experiments
import fedapps.method
import strategies
from fedapps import cli, models
from fedapps.core import config, project, registry
from fedapps.core.keys import markdown, table
from fedapps.core.options import flat as flatten_dict
from fedapps.data import NAMES
from fedapps.device import node_config
from fedapps.method import Figure, Objective, Plan, Stage, rehearse, take
from fedapps.method.client import ClientHooks
from fedapps.method.strategy import StrategyHooks
from fedapps.report import columns
from fedapps.tasks import CLASSIFICATION
from fedapps.training.workspace import Workspace
from tests.support import ROOT

DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", *DOCS.glob("*.md")])
LINKING = sorted({*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("[!.]*/*.md")})
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.M | re.S)
NOT_KEYS = {  # words with a hyphen that stand as code in the pages
    *("client-id", "state-dir", "model-key", "dp-budget", "dp-delta", "scores"),  # a node-config's
    "sex",
    *("num-supernodes", "client-resources-num-cpus", "client-resources-num-gpus"),  # Flower's
    *("tiny-imagenet", "tiny-imagenet-200", "crop-flip", "train-warmup", "dp-accounting"),
    *("clip-norm", "personal-layer", "plot-failed", "client-accuracy"),
    *("state-lost", "data-changed", "virtual-time", "left-out", "no-sum"),
    *("run-failed", "page-failed", "logger-failed"),  # events and plots
    *("sign-flip", "label-flip", "inflated-count"),  # values of attack, and of aggregation:
    *("trimmed-mean", "multi-krum", "geometric-median"),
    *("progress", "plots"),  # of `fedapps.run`
    *("ca.crt", "clip-lr", "flower-superlink", "flower-supernode"),
    *("node-config", "run-config", "vgg16-bn"),
}


def name_of(path):
    return str(path.relative_to(ROOT))


@cache
def text_of(path):
    return path.read_text("utf-8")


def prose(path):
    """A page without its blocks of code."""
    return BLOCK.sub("", text_of(path))


def blocks(path, language):
    return [body for kind, body in BLOCK.findall(text_of(path)) if kind == language]


@cache
def anchors(path):
    """The anchors of a page's headings, made as GitHub makes them."""
    found = []
    for title in re.findall(r"^#+ (.+)$", BLOCK.sub("", path.read_text("utf-8")), re.M):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).replace("`", "")
        found.append(re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-"))
    return found


@pytest.mark.parametrize("path", LINKING, ids=name_of)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
        if re.match(r"\w+:", target):  # https:, mailto:
            continue
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        assert there.exists(), f"{target}: no such file"
        assert not anchor or anchor in anchors(there), f"{target}: no such heading"


def test_every_page_can_be_reached_from_the_index():
    assert (ROOT / "SECURITY.md").exists()  # where hosting platforms look for it
    for page in (ROOT / "CONTRIBUTING.md", DOCS / "security.md", DOCS / "README.md"):
        assert "SECURITY.md)" in text_of(page), page
    index = text_of(DOCS / "README.md")
    for path in DOCS.glob("*.md"):
        assert path.name == "README.md" or f"({path.name})" in index, path.name


def test_the_page_of_keys_is_what_the_code_makes(capsys):
    _, _, below = text_of(DOCS / "configuration.md").partition("fedapps keys --markdown -->\n")
    advice = "put what `fedapps keys --markdown` prints below the marker of docs/configuration.md"
    assert cli.main(["keys", "--markdown"]) == 0
    assert below == capsys.readouterr().out, advice


def test_every_key_has_its_row_in_the_page_of_keys():
    rows = re.findall(r"^\| `([\w.-]+)` \|", "\n".join(markdown()), re.M)
    assert rows == [key.name for key in table()]
    assert set(rows) == set(config.defaults())


def keys_in(text):
    """Words that can only be keys: with a hyphen, or with a value; code of Python is left out."""
    for code in re.findall(r"`([^`\n()]+)`", text):
        yield from re.findall(r"^(?:[a-z]+\.)?[a-z]+(?:-[a-z]+)+$", code)
        yield from re.findall(r"(?<![\w-])((?:[a-z]+\.)?[a-z]+(?:-[a-z]+)*)=[\w\"]", code)


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_keys_that_a_page_names_exist(path):
    known = {*config.defaults(), *NOT_KEYS, *models.MODELS, *registry.names(), *NAMES}
    shown = {f"mymethod.{key}" for key in ("head-epochs",)}
    for key in keys_in(prose(path)):
        short = [name for name in known if name.endswith(f".{key}")]
        assert key in known | shown or short, f"{path.name} names {key}"


def commands(path):
    """The shell commands of a page as lists of words; a command may go on in the next line."""
    for body in blocks(path, "sh"):
        for line in body.replace("\\\n", " ").splitlines():
            if words := shlex.split(line, comments=True):
                yield words


def values(text):
    """Keys and values of an option, read as `fedapps` does: a text may lack its quotes."""
    found = {}
    for word in shlex.split(text.replace('"', '\\"')):
        key, _, value = word.partition("=")
        try:
            found[key] = tomllib.loads(f"x = {value}")["x"]
        except tomllib.TOMLDecodeError:
            assert re.fullmatch(r"[^\s'\"\\\[\]{}]+", value), f"{word} needs quotes"
            found[key] = value
    return found


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_commands_and_their_options_exist(path):
    known = {command.name: command for group in cli.COMMANDS.values() for command in group}
    for name, *words in (words[1:] for words in commands(path) if words[0] == "fedapps"):
        module = importlib.import_module(known[name].module)
        own = experiments.add_arguments if name == "experiments" else None
        if (add := getattr(module, "add_arguments", own)) and words != ["-h"]:
            parser = argparse.ArgumentParser()
            add(parser)
            end = words.index(">") if ">" in words else None  # from there on, it is the shell's
            parser.parse_args(words[:end])  # ends the test at an option that is not there


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_run_configs_of_commands_are_valid(path):
    for words in commands(path):
        changes = {}
        for option, text in pairwise(words):
            if option in ("-c", "--run-config") and text.endswith(".toml"):
                file = ROOT / text
                own = "RUN" in text or text in ("base.toml", "config.toml", "night.toml")
                assert own or file.exists(), text
                changes |= {} if own else flatten_dict(tomllib.loads(file.read_text("utf-8")))
            elif option in ("-c", "--run-config"):
                assert "flwr" not in words or '"' in text or "strategy" not in text, text
                changes |= values(text)
            elif option == "--node-config":
                assert {*values(text)} - {*node_config.OPTIONAL} == {*node_config.KEYS}
        if changes.get("strategy") not in ("mymethod", "headfirst"):
            assert set(changes) <= set(config.defaults()), words
            config.read(config.defaults() | changes)


@pytest.fixture
def pair_of(tmp_path, monkeypatch):
    """Return pair_of(page): the pairs of modules in a page's code, by name, ready to be run.

    Of a module that a page shows twice, it takes the last version, or with `last=False` the first.
    """
    folders = {package: tmp_path / package.__name__ for package in (strategies, clients)}
    made = []

    def pairs(page, last=True):
        for body in blocks(page, "python"):
            match = re.match(r"# (strategies|clients)/(\w+)\.py\n", body)
            if match and not (ROOT / match[1] / f"{match[2]}.py").exists():
                (tmp_path / match[1]).mkdir(exist_ok=True)
                module = tmp_path / match[1] / f"{match[2]}.py"
                if last or not module.exists():
                    module.write_text(body, "utf-8")
                made.append(match[2])
        for package, folder in folders.items():
            monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
        whole = dict(project.pyproject())
        for body in blocks(page, "toml") if last else ():  # the first version has no keys
            own = tomllib.loads(body)["tool"]["flwr"]["app"]["config"]
            app = whole["tool"]["flwr"]["app"]
            app = app | {"config": app["config"] | own}
            whole["tool"] = whole["tool"] | {"flwr": whole["tool"]["flwr"] | {"app": app}}
        monkeypatch.setattr(project, "pyproject", lambda: whole)
        registry.names.cache_clear()
        importlib.invalidate_caches()
        return {n: (registry.strategy_class(n), registry.client_class(n)) for n in made}

    yield pairs
    for name in made:
        for package in folders:
            sys.modules.pop(f"{package.__name__}.{name}", None)
            vars(package).pop(name, None)
    registry.names.cache_clear()


SMALL = "num-clients=4 local-epochs=2 fraction-train=1.0 finetune-epochs=1"


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("page", [ROOT / "README.md", DOCS / "add-a-method.md"], ids=name_of)
def test_the_first_method_shares_its_body_and_keeps_its_head(page, last, pair_of, tiny_npz):
    name, pair = next(iter(pair_of(page, last).items()))
    run = rehearse(*pair, f'{tiny_npz} {SMALL} strategy="{name}"')
    head = set(run.layout.keys_of(run.layout.head))
    run.rounds(2)
    initial = run.strategy.workspace.initial
    changed = {k for k, v in run.strategy.arrays.items() if not np.array_equal(v, initial[k])}
    assert changed == set(run.layout.keys_of(run.layout.body))
    for state in run.clients.values():
        assert {key.removeprefix("model/") for key in state} == head
    plan = run.strategy.plan(3, 0)
    assert [stage.layers for stage in plan.stages] == [run.layout.head, run.layout.names]
    assert run.evaluate(client=0)["accuracy_initial"] > 0.4


def test_a_method_of_a_page_is_ditto(pair_of, tiny_npz):
    theirs = registry.strategy_class("ditto"), registry.client_class("ditto")
    pair = pair_of(DOCS / "add-a-method.md")["beside"]
    mine = rehearse(*pair, f'{tiny_npz} {SMALL} strategy="beside"')
    alone = rehearse(*theirs, f'{tiny_npz} {SMALL} strategy="ditto"')
    for run in (mine, alone):
        run.rounds(2)
    assert alone.clients.keys() == mine.clients.keys() == {0, 1, 2, 3}
    same = [(state, mine.clients[client]) for client, state in alone.clients.items()]
    same.append((alone.strategy.arrays, mine.strategy.arrays))
    for one, two in same:
        assert one.keys() == two.keys()
        assert all(np.array_equal(value, two[key]) for key, value in one.items())
    assert mine.evaluate(client=1) == alone.evaluate(client=1)


def test_the_method_with_a_second_model_takes_the_steps_of_plain_pytorch(pair_of, tiny_npz):
    """One step of both clients on all their samples; the models are of two kinds."""
    pair = pair_of(DOCS / "method-examples.md")["mutual"]
    one_step = 'num-clients=2 fraction-train=1.0 local-epochs=1 batch-size=1000 lr=0.1 model="cnn"'
    options = tiny_npz.replace("batch-size=8", f'{one_step} strategy="mutual" mutual.own-share=0.3')
    made = rehearse(*pair, options)
    space, counts, sent = made.strategy.workspace, [], []
    for client in range(2):
        x, y = space.samples(client, "train")
        both = [models.build(kind, tuple(x.shape[1:]), 3, seed=0) for kind in ("cnn", "mlp")]
        odds = [model(x).softmax(1) for model in both]
        loss = 0.0
        for p, q in ((odds[0], odds[1].detach()), (odds[1], odds[0].detach())):
            loss = loss - 0.3 * p[torch.arange(len(y)), y].log().mean()
            loss = loss + 0.7 * (q * (q.log() - p.log())).sum(1).mean()
        loss.backward()
        after = [
            {key: (value - 0.1 * value.grad).detach() for key, value in model.named_parameters()}
            for model in both
        ]
        update = made.train(client, made.strategy.plan(1, client))
        kept = made.clients.pop(client)
        for key, value in after[0].items():
            np.testing.assert_allclose(kept["model/" + key], value, atol=1e-6)
        assert not update.arrays
        counts.append(len(y))
        sent.append(after[1])
    made.rounds(1)
    for key in sent[0]:
        mean = np.average([each[key] for each in sent], axis=0, weights=counts)
        np.testing.assert_allclose(made.strategy.state[f"s/{key}"], mean, atol=1e-6)
    assert 0 <= made.evaluate(client=0)["accuracy_personalized"] <= 1


def hooks_shown(first, **names):
    """The functions of the code on the page of hooks that begins with this line."""
    (code,) = (body for body in blocks(DOCS / "hooks.md", "python") if body.startswith(first))
    before = {*names, "__builtins__"}
    exec(code, names)
    return {name: value for name, value in names.items() if name not in before}


def test_the_client_with_two_losses_trains_its_body_before_its_head(
    tiny_npz, serial_run, monkeypatch, read_rounds
):
    """In a run, with its checks: the first training is one of the body alone, by its own loss."""
    names = {**vars(fedapps.method), "Tensor": torch.Tensor}
    shown = hooks_shown(
        "def before_training", cosine_similarity=torch.nn.functional.cosine_similarity, **names
    )
    strategy, client = registry.strategy_class("fedavg"), registry.client_class("fedavg")

    def plan(self, round_, number):
        return self.exchange(round_, self.layout.names, self.stage(round_, self.layout.head))

    def before_training(self, plan):
        start = take(self.model, self.layout.keys_of(self.layout.names))
        costs = shown["before_training"](self, plan)
        after = take(self.model, start)
        changed = {key for key in start if not np.array_equal(start[key], after[key])}
        seen.append(
            (changed == {*self.layout.keys_of(self.layout.body)}, self.strength, costs.macs)
        )
        return costs

    seen = []
    monkeypatch.setattr(strategy, "plan", plan, raising=False)
    for name, hook in {**shown, "before_training": before_training}.items():
        monkeypatch.setattr(client, name, hook, raising=False)
    folder = serial_run(tiny_npz, f'{SMALL} strategy="fedavg" num-rounds=2 model="mlp"')
    assert [strength for _, strength, _ in seen] == [0.1] * 4 + [0.2] * 4
    assert all(body and macs > 0 for body, _, macs in seen)
    last = read_rounds(folder)[-1]
    assert float(last["train_macs"]) > sum(macs for *_, macs in seen[4:])
    assert not last["failures"]


def test_each_client_gets_the_mean_of_its_own_head_and_of_the_nearest(tiny_npz):
    """Of those that have sent one; all other layers are the means of all."""
    shown = hooks_shown("class NearestHeads", **vars(fedapps.method), np=np)
    six = SMALL.replace("=4", "=6", 1)
    run = rehearse(shown["NearestHeads"], fedapps.method.BaseClient, f"{tiny_npz} {six}")
    run.rounds(1)
    strategy, keys = run.strategy, run.strategy.mixed_keys
    assert keys == run.layout.shared(run.layout.head)
    strategy.state["sent"][1] = False
    places = (0.0, 0.1, 7.0, 3.0, 2.0, 9.0)  # of the clients' heads
    for client, place in enumerate(places):
        sent = {key: np.full(run.layout.shapes[key], place, np.float32) for key in keys}
        strategy.keep_last(client, sent)
    plan = strategy.plan(2, 0)
    found = strategy.download(2, 0, plan)
    assert {*found} == {*plan.down(run.layout)}
    for key, array in found.items():
        wanted = (0.0 + 2.0 + 3.0 + 7.0) / 4 if key in keys else strategy.arrays[key]
        np.testing.assert_array_equal(array, np.broadcast_to(wanted, array.shape))
    newcomers = strategy.newcomer_download(2, 0, plan)
    assert all(np.array_equal(newcomers[key], strategy.arrays[key]) for key in keys)
    run.rounds(1)


def test_lines_of_a_method_on_the_page_of_examples_are_those_of_its_module():
    shown = [body.split("\n", 1) for body in blocks(DOCS / "method-examples.md", "python")]
    for first, code in shown:
        module = ROOT / first.removeprefix("# ")
        assert not module.exists() or code in text_of(module), first


def test_the_readmes_method_is_as_short_as_it_says():
    (lines,) = re.findall(r"in (\d+) lines", text_of(ROOT / "README.md"))
    code = [body for body in blocks(ROOT / "README.md", "python") if body.startswith("# ")]
    assert len(code) == 2 and sum(len(body.splitlines()) for body in code) <= int(lines)


def code_in_table(path, title):
    """The code at the beginning of the rows of the table with this title."""
    _, _, rest = text_of(path).partition(f"| {title} |")
    rows = rest.partition("\n\n")[0]
    first = re.findall(r"^\| (`.*?) \|", rows, re.M)
    return {word for cell in first for word in re.findall(r"`(\w+)", cell)}


def test_the_page_of_hooks_names_every_hook_and_field():
    page = DOCS / "hooks.md"
    hooks = code_in_table(page, "hook")
    own = {n for n, v in vars(StrategyHooks).items() if callable(v) and n[0] != "_"}
    assert own <= hooks | {"options"}
    client = {n for n, v in vars(ClientHooks).items() if callable(v) and n[0] != "_"}
    rest = text_of(page).partition("## The client")[2]
    for hook in client - {"answer"}:  # beside the plan
        assert f"| `{hook}(" in rest, hook
    stage, plan = ({f.name for f in msgspec.structs.fields(of)} for of in (Stage, Plan))
    assert code_in_table(page, "field of `Stage`") == stage - {"batches", "least"}  # split learning
    own = {"channel", "unpersonalized"}  # the engine's
    assert code_in_table(page, "field of `Plan`") == plan - own
    objective = set(Objective.__dataclass_fields__)
    assert code_in_table(page, "field of `Objective`") <= objective


def test_figures_on_the_page_of_hooks_go_with_those_of_all_methods(monkeypatch):
    """Whoever copies them can still start a run."""
    shown = re.findall(r"`figures = (\(Figure\(.*?\),\))`", text_of(DOCS / "hooks.md"), re.S)
    names = registry.names()
    methods = {"shown": tuple(f for s in shown for f in eval(s, {"Figure": Figure}))}
    monkeypatch.setattr(registry, "names", lambda: (*names, *methods))
    own = columns._figures_of
    monkeypatch.setattr(columns, "_figures_of", lambda name: methods.get(name) or own(name))
    found = columns.columns_of.__wrapped__(CLASSIFICATION).figures
    assert {"accuracy_own", "accuracy_global"} <= {figure.name for figure in found}
    assert {figure.named(CLASSIFICATION.lead) for figure in methods["shown"]} <= {*found}


def members():
    """What each class of ours has, by its name: methods, fields, and what methods set."""
    found = {}
    for path in sorted((ROOT / "fedapps").rglob("*.py")):
        for made in ast.walk(ast.parse(text_of(path))):
            if isinstance(made, ast.ClassDef):
                own = found.setdefault(made.name, set())
                own |= {node.name for node in made.body if isinstance(node, ast.FunctionDef)}
                own |= {n.target.id for n in made.body if isinstance(n, ast.AnnAssign)}
                own |= {*re.findall(r"self\.(\w+)(?:: [^=\n]+)? = ", ast.unparse(made))}
    return found


def modules_called(name):
    """The modules and packages of ours that have this name."""
    for path in sorted((ROOT / "fedapps").rglob("*.py")):
        where = path.parent if path.stem == "__init__" else path.with_suffix("")
        if where.name == name:
            yield importlib.import_module(".".join(where.relative_to(ROOT).parts))


def test_members_that_the_page_of_the_architecture_names_exist():
    known = members()
    told = re.findall(r"`([A-Z]\w*[a-z]\w*)\.(\w+)", text_of(ROOT / "ARCHITECTURE.md"))
    lost = {f"{of}.{name}" for of, name in told if name not in known.get(of, ())}
    assert len(told) > 10 and not lost


def test_functions_of_modules_that_the_page_of_the_architecture_names_exist():
    told = re.findall(r"`([a-z_]+)\.(?!py`|html`)([a-z]\w*)`", text_of(ROOT / "ARCHITECTURE.md"))
    known = {word: [*modules_called(word)] for both in told for word in both}
    ours = [(of, name) for of, name in told if known[of] and of != "strategy"]  # that is an object
    lost = {f"{of}.{name}" for of, name in ours if not any(hasattr(m, name) for m in known[of])}
    assert len(ours) > 6 and not lost


def test_each_concept_of_the_architecture_has_one_row():
    _, _, below = text_of(ROOT / "ARCHITECTURE.md").partition("\n| concept |")
    rows = re.findall(r"^\| (.+?) \|", below.partition("\n\n")[0], re.M)
    assert len(rows) > 50 and not [name for name in {*rows} if rows.count(name) > 1]


def test_the_page_of_data_names_every_set_and_its_example_is_a_data_set(tmp_path, monkeypatch):
    from fedapps.data import load

    page = DOCS / "data.md"
    rows = text_of(page).partition("| `dataset` |")[2].partition("\n\n")[0]
    assert set(NAMES) <= {*re.findall(r"`([\w-]+)`", rows)}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ratings.csv").write_text("item,price,rating\n20,1.5,4\n007,2,5\n20,1,3\n")
    for code in blocks(page, "python"):
        exec(code, {})
    assert config.read(config.parse(["items.toml"])).columns == "item=007|20,price"
    found, table = (load(str(tmp_path / f"{name}.npz"), "") for name in ("mine", "table"))
    assert (found.classes, found.shape, found.num_train) == (3, (1, 28, 28), 450)
    assert (str(table.inputs), table.num_train) == ("float32 samples of shape [13]", 450)
    notes, writing = (load(str(tmp_path / f"{name}.npz"), "") for name in ("notes", "writing"))
    texts = "He coughs at night.", "She sleeps well."
    letters = sorted({*"".join(texts)})
    assert notes.inputs.choices == writing.targets.choices == len(letters)
    assert (notes.shape, notes.classes, writing.targets.shape) == ((41,), 2, (6,))
    for row in writing.target_values:  # nothing that fills up is a target
        assert any("".join(letters[number] for number in row) in text for text in texts)
    for data, model, task in ((notes, "transformer-tiny", "classification"),
                              (writing, "lstm-char", "tokens")):  # fmt: skip
        space = Workspace(config.read(config.parse([
            f'dataset="{tmp_path / data.name}.npz" model="{model}" partitioner="natural"',
            'num-clients=0 device="cpu"',
        ])))  # fmt: skip
        assert (space.task.name, space.settings.num_clients) == (task, 5)
    turned = load(str(tmp_path / "turned.npz"), "")
    assert (turned.shape, turned.classes, len({*turned.groups})) == ((1, 28, 28), 10, 20)
    (keys,) = re.findall("fedapps serial -c 'dataset=/path/to/table.npz (.*)'", text_of(page))
    space = Workspace(config.read(config.parse([f'dataset="{tmp_path}/table.npz" {keys}'])))
    assert sum(len(space.samples(client, "train")[1]) for client in range(10)) == table.num_train


def test_the_page_on_pfllib_converts_its_files(tmp_path, monkeypatch):
    """Of each client: its own split, and the pixels that PFLlib gives its models."""
    from fedapps.data import load

    monkeypatch.chdir(tmp_path)
    rng, pixels = np.random.default_rng(0), []
    for part, size in (("train", 12), ("test", 4)):
        folder = tmp_path / "PFLlib" / "dataset" / "MNIST" / part
        folder.mkdir(parents=True)
        for client in range(11):
            x, y = rng.uniform(-1, 1, (size, 1, 4, 4)).astype(np.float32), np.arange(size) % 2
            np.savez_compressed(folder / f"{client}.npz", data={"x": x, "y": y})
            pixels.append((part, str(client), x))
    (code,) = blocks(DOCS / "coming-from-pfllib.md", "python")
    exec(code, {})
    data = load(str(tmp_path / "mnist-of-clients"), "")
    x, _ = data.tensors(np.arange(len(data.target_values)))
    pixels.sort(key=lambda each: (each[0] == "test", each[1]))
    np.testing.assert_allclose(x, np.concatenate([x for *_, x in pixels]), atol=1e-6)
    assert data.num_train == 132
    assert data.groups.tolist() == [who for _, who, x in pixels for _ in x]


def test_the_page_of_results_names_every_column_and_file(serial_run, tiny_npz):
    page = text_of(DOCS / "results-and-figures.md")
    known = columns.columns_of(CLASSIFICATION)
    every = {*known.rounds, *known.clients, *known.classes}
    for column in every | {*columns.EVENT}:
        short = re.sub(r"_(weighted|std)$", "", column)
        assert f"`{short}`" in page or f"`{column}`" in page, column
    folder = serial_run(tiny_npz, 'strategy="fedper"')
    for path in folder.iterdir():
        name = f"{path.name}/" if path.is_dir() else path.name
        assert f"| `{name}` |" in page, name
