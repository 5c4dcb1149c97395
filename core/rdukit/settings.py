"""Settings: file < environment < argument.

A part lists its settings in its own ``settings.py`` as ``Setting`` values, and calls ``resolve`` when it uses one.
Settings that several parts read or pass on are here, and those of a box in ``rdukit.box.settings``.
Settings are not read at import, and no other code reads the environment.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, Generic, TypeVar

from rdukit.errors import InvalidArgument

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Setting(Generic[T]):
    """A setting. ``home.size`` is ``RDUKIT_HOME_SIZE`` in the environment and ``home: {size: …}`` in the file."""

    name: str
    default: T
    help: str
    parse: Callable[[str], T]
    legal: tuple[T, ...] = ()
    #: A variable of the vendor or of a standard with the same meaning, which is read if ours is not set.
    also: str = ""

    @property
    def variable(self) -> str:
        """Name of the environment variable."""
        return "RDUKIT_" + self.name.replace(".", "_").upper()


def parse_bool(text: str) -> bool:
    """Parse ``1 true yes on`` and their opposites, in any case."""
    word = text.strip().lower()
    if word in {"1", "true", "yes", "on"}:
        return True
    if word in {"0", "false", "no", "off", ""}:
        return False
    raise ValueError(f"{text!r} is neither true nor false")


def parse_token(text: str) -> str:
    """Return the token; for ``@FILE``, the file's first line that is neither empty nor a comment."""
    if not text.startswith("@"):
        return text
    file = Path(text[1:]).expanduser()
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as cause:
        raise ValueError(f"{file} cannot be read: {cause}") from cause
    token = next((line.strip() for line in lines if line.strip() and not line.startswith("#")), "")
    if not token:
        raise ValueError(f"{file} holds no token; expected a line with one")
    return token


HOME: Final = Setting("home", "~/.rdukit", "Folder for all state: database, artifacts, kernels, logs, sockets.", str)
CONFIG: Final = Setting("config", "", "Settings file (YAML); default: config.yaml in the home folder.", str)
LOG_LEVEL: Final = Setting("log.level", "WARNING", "Level of the log on stderr.", str)
#: Value of ``log.format`` for a JSON object on each line.
JSON: Final = "json"
LOG_FORMAT: Final = Setting(
    "log.format", "text", "Format of the log on stderr: text, or json (one object per line with ids of job, attempt, "
                          "tenant, request and trace).", str, ("text", JSON),
)  # fmt: skip
TELEMETRY_OTLP_ENDPOINT: Final = Setting(
    "telemetry.otlp_endpoint", "",
    "OpenTelemetry collector that receives spans, such as http://127.0.0.1:4318; empty: none.", str,
    also="OTEL_EXPORTER_OTLP_ENDPOINT",
)  # fmt: skip
TELEMETRY_OTLP_PROTOCOL: Final = Setting(
    "telemetry.otlp_protocol", "http/protobuf", "Protocol for spans: http/protobuf, or grpc.", str,
    ("http/protobuf", "grpc"), also="OTEL_EXPORTER_OTLP_PROTOCOL",
)  # fmt: skip
TELEMETRY_SERVICE: Final = Setting(
    "telemetry.service", "", "Service name in spans; default: rdukit-gateway and so on.", str,
    also="OTEL_SERVICE_NAME",
)  # fmt: skip
TELEMETRY_SPAN_FILE: Final = Setting(
    "telemetry.span_file", "", "File to which spans are appended, one line of OTLP JSON each; empty: none.", str
)
TELEMETRY_TRACEPARENT: Final = Setting(
    "telemetry.traceparent", "", "Parent trace for the spans of a program or box, as a W3C traceparent.", str,
    also="TRACEPARENT",
)  # fmt: skip
TELEMETRY_RUN_SPANS: Final = Setting(
    "telemetry.run_spans", 8, "Number of first runs of a loaded PEF that get a span each.", int
)
TELEMETRY_SECTIONS: Final = Setting(
    "telemetry.sections", False, "Whether each section of those runs also gets a span.", parse_bool
)
CHECK: Final = Setting(
    "check", False, "Verify the graph after each compiler pass, and after each run on the CPU that device memory "
                    "stays within its plan.", parse_bool,
)  # fmt: skip
DEBUG: Final = Setting(
    "debug", 0, "Detail that compiles and loads print on stderr: 1 the graph, 2 also fusions, 3 choices, 4 kernels, 5 "
                "device memory addresses.", int, (0, 1, 2, 3, 4, 5),
)  # fmt: skip

SANITIZE: Final = Setting(
    "sanitize", False, "Build native kernels with AddressSanitizer and UBSan, whose libraries must be loaded before "
                       "the program; see `make sanitize`.", parse_bool,
)  # fmt: skip
KERNELS: Final = Setting(
    "kernels", "auto", "auto: native kernels where a C++ compiler is found; native: fail without a compiler; "
                       "portable: none.", str,
    ("auto", "native", "portable"),
)  # fmt: skip
DEVICE: Final = Setting(
    "device",
    "cpu",
    "Real device for the emulated device's memory and kernels: cpu, cuda, or cuda:<number>.",
    str,
)

SND_SOCKET: Final = Setting(
    "snd.socket", "", "UNIX socket of the node daemon; default: run/snd.sock in the home folder.", str
)
SND_STATE: Final = Setting("snd.state", "", "Folder of the node's database and logs; default: the home folder.", str)
SND_REATTACH_S: Final = Setting(
    "snd.reattach_s",
    10.0,
    "Seconds after the node daemon's end within which programs may attach again and keep their tiles.",
    float,
)
LEASE: Final = Setting("lease", "", "Lease to attach to instead of acquiring one, as <id>:<token>.", str)

TLS_CA: Final = Setting(
    "tls.ca", "", "File with the certificate authority of gateway, boxes and SNML; default: the system's.", str,
)  # fmt: skip
TLS_CERTIFICATE: Final = Setting(
    "tls.certificate", "", "File with the client certificate for servers that request one.", str
)
TLS_KEY: Final = Setting("tls.key", "", "File with the key of `tls.certificate`.", str)

TOKEN: Final = Setting(
    "token", "", "Token that commands send to the gateway, or to a box that requires one; @FILE: the first line of a "
                 "file. Default for the gateway: the file token in the home folder. Also --token.", parse_token,
)  # fmt: skip

CONTEXT: Final = Setting(
    "context", "", "Platform for commands and the Python client, by its name in `rdukit context list`; overrides "
                   "`gateway.url`. Default: the one chosen by `rdukit context use`. Also --context.", str,
)  # fmt: skip

CORE_SETTINGS: Final = (
    HOME, CONFIG, TOKEN, CONTEXT, LOG_LEVEL, LOG_FORMAT, CHECK, DEBUG, SANITIZE, KERNELS, DEVICE, SND_SOCKET, SND_STATE,
    SND_REATTACH_S, LEASE, TLS_CA, TLS_CERTIFICATE, TLS_KEY, TELEMETRY_OTLP_ENDPOINT, TELEMETRY_OTLP_PROTOCOL,
    TELEMETRY_SERVICE, TELEMETRY_SPAN_FILE, TELEMETRY_TRACEPARENT, TELEMETRY_RUN_SPANS, TELEMETRY_SECTIONS,
)  # fmt: skip


def resolve(setting: Setting[T], argument: T | None = None, environ: Mapping[str, str] | None = None) -> T:
    """Return the effective value; precedence, highest first: argument, environment, settings file, default.

    Raises:
        InvalidArgument: the text in the environment or file is not a valid value.
    """
    if argument is not None:
        return _checked(setting, argument, "argument")
    env = os.environ if environ is None else environ
    for variable in (setting.variable, setting.also):
        if variable and (text := env.get(variable)) is not None:
            return _checked(setting, _parsed(setting, text, f"${variable}"), f"${variable}")
    if setting.name not in {"home", "config"}:
        value: object = _file_values(env)
        for part in setting.name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            return _checked(setting, _parsed(setting, str(value), "settings file"), "settings file")
    return setting.default


def home_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return ``$RDUKIT_HOME`` as a path; it need not exist."""
    return Path(resolve(HOME, environ=environ)).expanduser().absolute()


def variables_of(names: Iterable[str], environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the set variables of these names, from the environment and the settings file, for a process that reads
    neither.
    """
    env = os.environ if environ is None else environ
    in_file = dict(_flatten("RDUKIT", _file_values(env)))
    found = {name: env.get(name, in_file.get(name)) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def given_settings(environ: Mapping[str, str] | None = None) -> list[tuple[str, str]]:
    """Return the variables of the settings file and then of the environment, including secrets.

    Raises:
        InvalidArgument: the settings file cannot be read.
    """
    env = os.environ if environ is None else environ
    found = sorted(_flatten("RDUKIT", _file_values(env)))
    return found + sorted((name, value) for name, value in env.items() if name.startswith("RDUKIT_"))


def _flatten(prefix: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flatten(f"{prefix}_{name}".upper(), inner)
    elif value is not None:
        yield prefix, str(value)


def _file_values(env: Mapping[str, str]) -> object:
    configured = env.get(CONFIG.variable, "")
    path = Path(configured).expanduser() if configured else home_folder(env) / "config.yaml"
    try:
        text = path.read_text()
    except FileNotFoundError:
        if configured:
            message = f"settings file {path} does not exist; unset ${CONFIG.variable} or create it"
            raise InvalidArgument(message) from None
        return {}
    return _read_yaml(path, text)


@lru_cache(maxsize=1)
def _read_yaml(path: Path, text: str) -> object:
    """Return the values of a settings file; equal text, which takes a millisecond, is parsed once."""
    import yaml  # this import costs more than the rest of the module, and most processes have no settings file

    try:
        return yaml.safe_load(text) or {}
    except yaml.YAMLError as cause:
        raise InvalidArgument(f"settings file {path} is not valid YAML: {cause}") from cause


def _parsed(setting: Setting[T], text: str, origin: str) -> T:
    try:
        return setting.parse(text)
    except ValueError as cause:
        raise InvalidArgument(f"{origin}: {text!r} is not valid for {setting.name}: {cause}") from cause


def _checked(setting: Setting[T], value: T, origin: str) -> T:
    if setting.legal and value not in setting.legal:
        raise InvalidArgument(
            f"{origin}: {value!r} is not valid for {setting.name}; expected {', '.join(map(str, setting.legal))}"
        )
    return value
