"""Every setting on the page is read where it matters, and a test gives it another value or says why none does."""

import ast
import importlib.util
import logging
import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest

from rdukit.errors import InvalidArgument
from rdukit.settings import CORE_SETTINGS, Setting, resolve
from support import shows

pytestmark = shows("settings")

CHECKOUT: Final = Path(__file__).parents[3]
ROOTS: Final = ("core", "sdk", "compiler", "runtime", "modelboxes", "platform", "zoo", "benchmarks")

_DURATION = "a time: only a timed test would show it, and tests wait for states"
_ARGUMENT = "tests give the value as an argument to what the setting is resolved for: "
#: Settings that no test gives another value, by name, and why.
WITHOUT_TEST: Final = {
    "arch": _ARGUMENT + "--arch of a compile",
    "box.child_memory_bytes": _ARGUMENT + "the memory that a box's YAML allows",
    "box.drain_s": _DURATION,
    "box.max_rows": _ARGUMENT + "requests beyond the default",
    "box.ready_timeout_s": _DURATION,
    "box.restart_backoff_s": _DURATION,
    "box.rows_idle_s": _DURATION,
    "box.stall_s": _DURATION,
    "engine.keep_memory": "it changes what glibc asks the system for, and no result",
    "numerics.trap": _ARGUMENT + "the application's own switch",
    "profile.events": "tests run rdukit profile, which sets it",
    "profile.folder": "tests run snprof, which sets it",
    "profile.output_folder": "tests run rdukit profile --try, which sets it",
    "sambatune.dump_root": _ARGUMENT + "--artifact-root of sambatune",
    "scheduler.half_life_s": _ARGUMENT + "half_life_s of a decision",
    "scheduler.poll_s": _DURATION,
    "scheduler.preempt_most": _ARGUMENT + "preemption of a decision",
    "scheduler.preempt_priority": _ARGUMENT + "preemption of a decision",
    "scheduler.starve_s": _DURATION,
    "scheduler.tenant_jobs": _ARGUMENT + "tenant_jobs of a decision",
    "snd.max_applications": _ARGUMENT + "--max-applications of the daemon",
    "snd.name": _ARGUMENT + "--name of the daemon",
    "precision": _ARGUMENT + "--precision of a compile",
    "snd.rdu_reset_s": _DURATION,
    "worker.box_pod": _ARGUMENT + "the template of the backend; resolving it needs a cluster",
}  # fmt: skip


def _max_ratio() -> object:
    from rdukit_modelbox.artifacts.store import current_limits

    return current_limits()


def _artifacts() -> object:
    from rdukit_platform.settings import current_home

    return current_home().artifacts


def _home(name: str) -> Callable[[], object]:
    def value() -> object:
        from rdukit_platform.settings import current_home

        return getattr(current_home(), name)()

    return value


def _box_command() -> object:
    from rdukit_platform.settings import box_command

    return box_command()


def _claim() -> object:
    from rdukit_platform.backends.job_boxes import read_claim
    from rdukit_platform.settings import BOX_CLAIM

    try:
        return read_claim(resolve(BOX_CLAIM), Path("/tmp/home"))
    except InvalidArgument as refused:
        return refused.message


def _default_tiles() -> object:
    from rdukit_platform.jobs.service import default_tiles

    return default_tiles("train")


def _children() -> object:
    from rdukit_platform.settings import current_home
    from rdukit_platform.up.supervisor import list_children

    return [child.name for child in list_children(current_home(), 3)]


def _state() -> object:
    from rdukit_node.settings import node_paths

    return node_paths()


def _user_limits() -> object:
    from rdukit_node.daemon.run import user_limits

    return user_limits()


def _connections() -> object:
    from rdukit_node.daemon.server import connection_limits

    return connection_limits()


def _credentials() -> object:
    from rdukit_modelbox.image.push import _docker_config

    return _docker_config()


def _kernel_cache() -> object:
    from rdukit_compiler.backend.kernel_cache import open_kernel_cache

    return vars(open_kernel_cache("v"))


def _client() -> object:
    from rdukit_platform.client.http import ApiClient
    from rdukit_platform.settings import current_home

    current_home().token_file.write_text("from the home folder")
    http = ApiClient.of_home()._http
    return str(http.base_url), http.headers["authorization"]


def _limits() -> object:
    from rdukit_node.isolation.cgroup import CgroupGuard

    return CgroupGuard.by_settings("somebody", 4)._limits


def _daemon_log() -> object:
    from rdukit.settings import home_folder
    from rdukit_node.logs.files import configure_daemon_log

    root = logging.getLogger()
    level, handler = root.level, configure_daemon_log(home_folder() / "snd.log")
    root.removeHandler(handler)
    root.setLevel(level)
    handler.close()
    return handler.level


def _log_level() -> object:
    from rdukit.system.process import configure_logging

    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    configure_logging()
    found = root.level
    root.setLevel(level)
    for handler in set(root.handlers) - set(handlers):
        root.removeHandler(handler)
    return found


def _threads() -> object:
    from rdukit_runtime.engine.threads import max_threads
    from rdukit_runtime.settings import ENGINE_THREADS

    return max_threads(4, 4, resolve(ENGINE_THREADS), 16, is_chosen=False)


def _log_file() -> object:
    from rdukit.settings import home_folder
    from rdukit_node.logs.files import _log_file

    made = _log_file(home_folder() / "sn.log", 0o600)
    return {name: value for name, value in vars(made).items() if isinstance(value, int)}


#: Setting → value that a test gives, and what is other then.
EFFECTS: Final[dict[str, tuple[str, Callable[[], object]]]] = {
    "artifacts.max_ratio": ("7", _max_ratio),
    "artifacts.max_unpacked_bytes": ("7", _max_ratio),
    "artifacts.store": ("/tmp/elsewhere", _artifacts),
    "broker.url": ("redis://elsewhere:1", _home("broker_url")),
    "compile.kernel_cache_mib": ("7", _kernel_cache),
    "database.url": ("sqlite:////tmp/other.sqlite", _home("database_url")),
    "job.tiles": ("7", _default_tiles),
    "snd.state": ("/tmp/other", _state),
    "snd.user_applications": ("7", _user_limits),
    "snd.user_connections": ("7", _connections),
    "snd.user_tiles": ("7", _user_limits),
    "up.node": ("0", _children),
    "box.registry_config": (str(CHECKOUT / "docs" / "operators.json"), _credentials),
    "gateway.url": ("http://elsewhere:1", _client),
    "isolation.memory_bytes": ("7", _limits),
    "isolation.pids": ("7", _limits),
    "engine.threads": ("7", _threads),
    "log.daemon_level": ("ERR", _daemon_log),
    "log.level": ("DEBUG", _log_level),
    "log.keep": ("7", _log_file),
    "log.max_bytes": ("7", _log_file),
    "token": ("another", _client),
    "worker.box_claim": ("home:/tmp", _claim),
    "worker.box_command": ("other command", _box_command),
}


def settings() -> dict[str, Setting[Any]]:
    """All that ``docs/settings.md`` lists, by name; those of one name in two parts are one."""
    spec = importlib.util.spec_from_file_location("docs_script", CHECKOUT / "scripts" / "docs.py")
    assert spec is not None and spec.loader is not None
    docs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(docs)
    found = [*CORE_SETTINGS, *(each for name in docs.SETTINGS_MODULES for each in docs.module_settings(name))]
    return {setting.name: setting for setting in found}


SETTINGS: Final = settings()
#: Other names of this form in the product: macros of kernels' C++, an example, and a variable of Compose.
OTHER_NAMES: Final = frozenset({
    "RDUKIT_DATABASE_PASSWORD", "RDUKIT_FLOAT_ONEDNN", "RDUKIT_HOME_SIZE", "RDUKIT_NATIVE_BF16",
    "RDUKIT_OWN_LINEAR", "RDUKIT_ROWS_SWEEP", "RDUKIT_SECTION", "RDUKIT_WINOGRAD",
})  # fmt: skip
#: Variable → the name of its setting.
VARIABLES: Final = {setting.variable: name for name, setting in SETTINGS.items()}


@cache
def defined() -> dict[tuple[str, str], str]:
    """(module, constant) → the name of its setting."""
    found = {}
    for module, tree in modules():
        for node in tree.body:
            if isinstance(node, ast.AnnAssign | ast.Assign) and isinstance(node.value, ast.Call):
                target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
                first = node.value.args[0] if node.value.args else None
                if isinstance(node.value.func, ast.Name) and node.value.func.id == "Setting":
                    assert isinstance(target, ast.Name) and isinstance(first, ast.Constant)
                    found[module, target.id] = str(first.value)
    return found


@cache
def modules() -> tuple[tuple[str, ast.Module], ...]:
    """Every module of ours that knows a setting."""
    files = [(path, path.read_text()) for root in ROOTS for path in sorted((CHECKOUT / root).rglob("*.py"))]
    return tuple(
        (".".join(path.relative_to(CHECKOUT).with_suffix("").parts[1:]), ast.parse(text))
        for path, text in files
        if "etting" in text
    )


@cache
def faces() -> dict[tuple[str, str], tuple[str, str]]:
    """(package, name) → where a package that passes a name on, by ``import NAME as NAME``, has it from."""
    return {
        (module.removesuffix(".__init__"), each.name): (node.module, each.name)
        for module, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for each in node.names
        if each.asname == each.name
    }


def resolved() -> Iterator[str]:
    """Names of settings that are given to ``resolve`` somewhere, each followed to the module that defines it."""
    for module, tree in modules():
        origins = {name: (module, name) for there, name in defined() if there == module}
        aliases: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                origins |= {each.asname or each.name: (node.module, each.name) for each in node.names}
                aliases |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "resolve"):
                continue
            given = node.args[0]
            if isinstance(given, ast.Attribute) and isinstance(given.value, ast.Name):
                place = aliases.get(given.value.id, ""), given.attr
            else:
                place = origins.get(getattr(given, "id", ""), ("", ""))
            place = faces().get(place, place)
            if place in defined():
                yield defined()[place]


def given_values(tree: ast.Module) -> Iterator[tuple[str, ast.expr | str]]:
    """Names of settings, each with a value that a test gives it: in an environment, or as the argument of ``resolve``.

    A setting that is only named, such as by ``delenv``, is given none.
    """
    constants = {
        each.asname or each.name: defined()[node.module, each.name]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for each in node.names
        if (node.module, each.name) in defined()
    }

    def name_of(node: ast.AST | None) -> str:
        """The setting whose variable this is."""
        if isinstance(node, ast.Constant):
            return VARIABLES.get(str(node.value), "")
        is_variable = isinstance(node, ast.Attribute) and node.attr == "variable" and isinstance(node.value, ast.Name)
        return constants.get(node.value.id, "") if is_variable else ""

    for node in ast.walk(tree):
        pairs: list[tuple[ast.AST | None, ast.expr]] = []
        if isinstance(node, ast.Dict):
            pairs += zip(node.keys, node.values, strict=True)
        elif isinstance(node, ast.Tuple | ast.List):
            pairs += pairwise(node.elts)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            pairs.append((node.targets[0].slice, node.value))
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in {"setenv", "setitem", "setdefault"}:
                pairs += pairwise(node.args)
            elif called == "resolve" and len(node.args) > 1 and isinstance(node.args[0], ast.Name):
                yield constants.get(node.args[0].id, ""), node.args[1]
            yield from ((VARIABLES[each.arg], each.value) for each in node.keywords if each.arg in VARIABLES)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            for variable, value in re.findall(r"\b(RDUKIT_\w+)=(\S*)", node.value):
                yield VARIABLES.get(variable, ""), value
        yield from ((name, value) for key, value in pairs if (name := name_of(key)))


def is_another(name: str, value: ast.expr | str) -> bool:
    """Whether a value is, as far as can be told, not the setting's default."""
    if not name or (isinstance(value, ast.expr) and not isinstance(value, ast.Constant)):
        return bool(name)
    setting, text = SETTINGS[name], str(value.value if isinstance(value, ast.Constant) else value)
    if text in VARIABLES:  # in a list of variables
        return False
    try:
        return bool(setting.parse(text) != setting.default)
    except (ValueError, InvalidArgument):
        return True  # that it is refused is what the test is for


def test_every_setting_is_resolved_somewhere() -> None:
    # The settings file's own place is read before there is a file to resolve others from.
    assert set(SETTINGS) - set(resolved()) - {"config"} == set()


@pytest.mark.parametrize(
    ("text", "is_trial"),
    [
        ('patch.setenv("RDUKIT_NODE", "daemon")', True),
        ('environment(home, RDUKIT_NODE="daemon")', True),
        ('FAST = {"RDUKIT_NODE": "daemon"}', True),
        ('os.environ["RDUKIT_NODE"] = value', True),
        ('run("RDUKIT_NODE=daemon rdukit run")', True),
        ("from rdukit_node.settings import NODE\nresolve(NODE, 'daemon')", True),
        ("from rdukit_node.settings import NODE\npatch.setenv(NODE.variable, 'daemon')", True),
        ('patch.delenv("RDUKIT_NODE")', False),
        ('patch.setenv("RDUKIT_NODE", "auto")', False),
        ('for name in ("RDUKIT_HOME", "RDUKIT_NODE"): patch.delenv(name)', False),
        ("from rdukit_node.settings import NODE\nassert resolve(NODE) == 'auto'", False),
    ],
)
def test_a_setting_is_tried_by_giving_it_another_value_not_by_naming_it(text: str, is_trial: bool) -> None:
    tried = {name for name, value in given_values(ast.parse(text)) if is_another(name, value)}
    assert ("node" in tried) is is_trial


def test_every_setting_has_another_value_in_a_test_or_a_reason_why_not() -> None:
    tested = set()
    for path in (CHECKOUT / "tests").rglob("*.py"):
        text = path.read_text()
        if path != Path(__file__) and "charts" not in path.parts and ("RDUKIT_" in text or "ettings import" in text):
            tested |= {name for name, value in given_values(ast.parse(text)) if is_another(name, value)}
    todo = "a test gives it another value, or WITHOUT_TEST or EFFECTS above names it"
    assert set(SETTINGS) - tested - set(EFFECTS) - set(WITHOUT_TEST) == set(), todo
    assert set(WITHOUT_TEST) & (tested | set(EFFECTS)) == set(), "a test has come: take the reason out"
    assert set(WITHOUT_TEST) | set(EFFECTS) <= set(SETTINGS), "there is no such setting any more"


@pytest.mark.parametrize("name", sorted(EFFECTS))
def test_another_value_changes_what_the_setting_is_for(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RDUKIT_HOME", str(tmp_path))
    monkeypatch.delenv(SETTINGS[name].variable, raising=False)
    value, effect = EFFECTS[name]
    before = effect()
    monkeypatch.setenv(SETTINGS[name].variable, value)
    assert effect() != before


def test_variables_of_the_vendor_and_of_opentelemetry_are_ours(tmp_path: Path) -> None:
    assert {name: setting.also for name, setting in SETTINGS.items() if setting.also} == {
        "distributed.overlap": "SAMBA_CCL_ASYNC_ALLREDUCE",
        "distributed.timeout_s": "CCL_TIMEOUT",
        "distributed.transport": "SAMBA_CCL_USE_PCIE_TRANSPORT",
        "sambatune.dump_root": "DUMP_ROOT",
        "telemetry.otlp_endpoint": "OTEL_EXPORTER_OTLP_ENDPOINT",
        "telemetry.otlp_protocol": "OTEL_EXPORTER_OTLP_PROTOCOL",
        "telemetry.service": "OTEL_SERVICE_NAME",
        "telemetry.traceparent": "TRACEPARENT",
    }
    environ = {"RDUKIT_HOME": str(tmp_path), "CCL_TIMEOUT": "30"}
    assert resolve(SETTINGS["distributed.timeout_s"], environ=environ) == 30.0


def test_variables_that_the_product_names_belong_to_settings() -> None:
    shipped = [root for root in ROOTS if root != "benchmarks"]
    files = [path for root in shipped for path in sorted((CHECKOUT / root).rglob("*.py"))]
    named = {(name, path.name) for path in files for name in re.findall(r"\bRDUKIT_[A-Z0-9_]+\b", path.read_text())}
    known = OTHER_NAMES | VARIABLES.keys()
    assert sorted(pair for pair in named if pair[0] not in known) == []
    assert {name for name, _ in named} >= OTHER_NAMES, "leave out names that are gone"
