"""Images: their weight and start; layouts written in Python, judged by independent tools and run by two engines."""

import json
import platform
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import torch
import yaml
from compose_stack import PATIENCE_S
from safetensors.torch import save_file

from rdukit_modelbox.image.build import build_layout
from rdukit_modelbox.image.config import empty_config, with_layers
from rdukit_modelbox.image.contents import SBOM_PATH, make_dockerfile, read_contents
from rdukit_modelbox.image.engines import build_with_engine
from rdukit_modelbox.image.layer import LayerEntry
from rdukit_modelbox.image.layout import ImageLayout, manifest_blob
from rdukit_modelbox.image.media import CONFIG_TYPE, MANIFEST_TYPE, compact_json, machine_name
from rdukit_modelbox.image.push import push_image
from rdukit_modelbox.image.verify import verify_layout
from rdukit_platform.backends.contract import BoxLimits, BoxSpec, ClaimedFolder
from rdukit_platform.backends.pods import PodRules, make_pod
from rdukit_zoo.mlp import MultiLayerPerceptron
from support import shows
from support.boxes import run_verb

TREE = Path(__file__).parents[2]
MB = 1_000_000

pytestmark = [shows("images", "containers", "box", "mlp", "logreg", "ffn"), pytest.mark.timeout(900), pytest.mark.long]


def run(*command: str, environment: dict[str, str] | None = None, timeout_s: float = 300.0) -> str:
    """Run a command. Returns what it printed."""
    done = subprocess.run(
        command, cwd=TREE, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def size_of(image: str, environment: dict[str, str]) -> int:
    return int(run("docker", "image", "inspect", "--format", "{{.Size}}", image, environment=environment))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def wait_ready(url: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            if httpx.get(f"{url}/health/ready", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        assert time.monotonic() < deadline, f"{url} is not ready"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def box_image(engine_environment: dict[str, str], images: dict[str, str]) -> str:
    """A box's image, built by docker from the generated Dockerfile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", engine_environment.get("DOCKER_HOST", "unix:///var/run/docker.sock"))
        build_with_engine("docker", read_contents("logreg"), "rdukit/box-logreg:test", images["modelbox"])
    return "rdukit/box-logreg:test"


def test_the_control_plane_weighs_less_than_350_megabytes(
    images: dict[str, str], engine_environment: dict[str, str]
) -> None:
    assert size_of(images["platform"], engine_environment) < 350 * MB
    assert size_of(images["snd"], engine_environment) < 250 * MB


def test_twenty_boxes_add_less_than_100_megabytes(
    images: dict[str, str], engine_environment: dict[str, str], tmp_path: Path
) -> None:
    before = size_of(images["modelbox"], engine_environment)
    text = (read_contents("logreg").files["modelbox.yaml"]).decode()
    added, layers = 0, set()
    try:
        for number in range(20):
            folder = tmp_path / f"box{number}"
            folder.mkdir()
            (folder / "modelbox.yaml").write_text(text.replace("name: logreg", f"name: box{number}", 1))
            (folder / "README.md").write_text(f"Model card of box {number}.\n" * 50)
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("DOCKER_HOST", engine_environment.get("DOCKER_HOST", "unix:///var/run/docker.sock"))
                build_with_engine("docker", read_contents(str(folder)), f"rdukit/box{number}:test", images["modelbox"])
            added += size_of(f"rdukit/box{number}:test", engine_environment) - before
            shown = run(
                "docker", "image", "inspect", "--format", "{{json .RootFS.Layers}}", f"rdukit/box{number}:test",
                environment=engine_environment,
            )  # fmt: skip
            layers.add(tuple(json.loads(shown)[:-1]))
    finally:
        names = [f"rdukit/box{number}:test" for number in range(20)]
        subprocess.run(["docker", "rmi", *names], env=engine_environment, capture_output=True, check=False)
    assert 0 < added < 100 * MB
    assert len(layers) == 1, "all share every layer but their own"


def test_every_image_has_labels_a_bill_of_materials_and_a_check_of_health(
    images: dict[str, str], box_image: str, engine_environment: dict[str, str]
) -> None:
    for image in (*images.values(), box_image):
        (found,) = json.loads(run("docker", "image", "inspect", image, environment=engine_environment))
        config = found["Config"]
        assert config["User"] == "10001:10001"
        assert config["Entrypoint"] == ["tini", "-s", "--"]
        assert config["Healthcheck"]["Test"][0] == "CMD"
        assert {"org.opencontainers.image.title", "org.opencontainers.image.version"} <= set(config["Labels"])
        path = SBOM_PATH if image == box_image else "/opt/rdukit/share/sbom.cdx.json"
        sbom = run("docker", "run", "--rm", "--entrypoint", "cat", image, path, environment=engine_environment)
        names = {component["name"] for component in json.loads(sbom)["components"]}
        assert "rdukit" in names and ("torch" in names) == (image == images["modelbox"])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder, readable for all, with a PEF of the box mlp and a checkpoint."""
    folder = tmp_path_factory.mktemp("served")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RDUKIT_KERNELS", "portable")  # the container's installation does not trust this one's libraries
        pef = Path(run_verb("mlp", "compile", folder / "compiled", purpose="serve", batch_size=32).outputs["pef"])
    shutil.copyfile(pef, folder / "mlp.pef")
    torch.manual_seed(0)
    save_file(MultiLayerPerceptron().state_dict(), folder / "mlp.safetensors")
    for path in (*folder.iterdir(), *list(folder.parents)[:2], folder):
        path.chmod(0o755)
    return folder


def test_a_box_in_a_container_serves_its_model_and_stops_in_order(
    box_image: str, served: Path, engine_environment: dict[str, str]
) -> None:
    port = free_port()
    command = [
        "rdukit", "box", "run", "mlp", "--host", "0.0.0.0", "--parent", "0", "--mount", "/models",
        "--pef", "/models/mlp.pef", "--checkpoint", "/models/mlp.safetensors",
    ]  # fmt: skip
    container = run(
        "docker", "run", "--detach", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt",
        "no-new-privileges", "--publish", f"127.0.0.1:{port}:9000", "--volume", f"{served}:/models:ro", box_image,
        *command, environment=engine_environment,
    ).strip()  # fmt: skip
    try:
        wait_ready(f"http://127.0.0.1:{port}/v2")
        tensor = {"name": "rows", "datatype": "FP32", "shape": [1, 64], "data": [0.5] * 64}
        answered = httpx.post(f"http://127.0.0.1:{port}/v2/models/mlp/infer", json={"inputs": [tensor]}, timeout=10)
        assert answered.status_code == 200 and answered.json()["outputs"][0]["shape"] == [1, 10], answered.text
        run("docker", "stop", "--time", "10", container, environment=engine_environment)
        code = run("docker", "inspect", "--format", "{{.State.ExitCode}}", container, environment=engine_environment)
        assert code.strip() == "0"
    finally:
        subprocess.run(["docker", "rm", "-fv", container], env=engine_environment, capture_output=True, check=False)


# Programs are fixtures that a test names before the layout: it is not written, half a minute, where one is missing.
@pytest.fixture(scope="session")
def skopeo(need: Callable[[str], str]) -> str:
    return need("skopeo")


@pytest.fixture(scope="session")
def validator(need: Callable[[str], str]) -> str:
    return need("oci-image-tool")


@pytest.fixture(scope="session")
def docker_registry(need: Callable[[str], str]) -> str:
    return need("docker-registry")


def test_independent_tools_accept_a_layout_that_python_wrote(skopeo: str, validator: str, layout: Path) -> None:
    told = json.loads(run(skopeo, "inspect", f"oci:{layout}:logreg"))
    assert told["Labels"]["dev.rdukit.box.name"] == "logreg"
    assert told["Labels"]["dev.rdukit.box.verbs"] == "preprocess,compile,train,infer,evaluate"
    # The validator wants one image in a layout.
    one = layout.with_name("one")  # beside it, on the same disk: blobs are linked
    pushed = push_image(layout, "logreg", f"oci:{one}:logreg")
    assert (told["Digest"], verify_layout(one).images) == (pushed.digest, ("logreg",))
    run(validator, "validate", "--type", "image", "--ref", "name=logreg", str(one))


def test_umoci_unpacks_a_layout_that_python_wrote(tmp_path: Path, need: Callable[[str], str]) -> None:
    """On a small base: the whole of torch would take minutes."""
    layout = ImageLayout.create(tmp_path / "layout")
    layer = layout.add_layer([LayerEntry("/bin/tini", data=b"tini", is_executable=True)], 0, is_compressed=True)
    config = with_layers(empty_config(machine_name(platform.machine()), "/bin", True), [layer.diff_id], ["base"], 0)
    config_blob = layout.add_blob(CONFIG_TYPE, compact_json(config))
    layout.set_reference("base", layout.add_blob(MANIFEST_TYPE, manifest_blob(config_blob, [layer.descriptor], {})), {})
    build_layout("logreg", tmp_path / "layout", f"oci:{tmp_path / 'layout'}:base")
    run(need("umoci"), "unpack", "--image", f"{tmp_path / 'layout'}:logreg", str(tmp_path / "bundle"))
    root = tmp_path / "bundle/rootfs"
    assert (root / "opt/rdukit/box/modelbox.yaml").read_bytes() == read_contents("logreg").files["modelbox.yaml"]
    assert (root / "var/lib/rdukit").stat().st_uid == 10001
    assert (root / "bin/tini").stat().st_mode & 0o777 == 0o755


def test_docker_runs_a_layout_that_python_wrote(engine_environment: dict[str, str], skopeo: str, layout: Path) -> None:
    daemon = engine_environment.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    target = ["--dest-daemon-host", daemon, f"oci:{layout}:ffn", "docker-daemon:rdukit/box-ffn:oci"]
    run(skopeo, "copy", "--quiet", "--insecure-policy", *target)
    port = free_port()
    container = run(
        "docker", "run", "--detach", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL",
        "--publish", f"127.0.0.1:{port}:9000", "rdukit/box-ffn:oci", environment=engine_environment,
    ).strip()  # fmt: skip
    try:
        wait_ready(f"http://127.0.0.1:{port}")
        assert httpx.get(f"http://127.0.0.1:{port}/v1/describe", timeout=30).json()["name"] == "ffn"
    finally:
        subprocess.run(["docker", "rm", "-fv", container], env=engine_environment, capture_output=True, check=False)
        subprocess.run(
            ["docker", "rmi", "rdukit/box-ffn:oci"], env=engine_environment, capture_output=True, check=False
        )


def test_the_generated_dockerfile_builds_with_buildah_too(
    podman_environment: dict[str, str], layout: Path, need: Callable[[str], str]
) -> None:
    need("buildah")
    environment = {key: value for key, value in podman_environment.items() if key != "RDUKIT_PODMAN_URL"}
    base = run("podman", "pull", "--quiet", f"oci:{layout}:rdukit-base", environment=environment).split()[-1]
    with pytest.MonkeyPatch.context() as patch:
        for key, value in environment.items():
            patch.setenv(key, value)
        build_with_engine("buildah", read_contents("ffn"), "localhost/rdukit/box-ffn:test", base)
    shown = json.loads(run("podman", "image", "inspect", "localhost/rdukit/box-ffn:test", environment=environment))
    assert shown[0]["Config"]["Labels"]["dev.rdukit.box.name"] == "ffn"


def test_podman_plays_the_pod_that_kubernetes_would_get(
    podman_environment: dict[str, str], layout: Path, tmp_path: Path, need: Callable[[str], str]
) -> None:
    need("catatonit")  # the first process of podman's Pods
    image = run("podman", "pull", "--quiet", f"oci:{layout}:logreg", environment=podman_environment).split()[-1]
    run("podman", "tag", image, "localhost/rdukit/box-logreg:play", environment=podman_environment)
    state = Path("/var/lib/rdukit/state")
    spec = BoxSpec(
        "logreg", state, limits=BoxLimits(cores=(0,), memory_bytes=2 << 30), image="localhost/rdukit/box-logreg:play"
    )
    rules = PodRules("default", "unused", [ClaimedFolder(Path("/var/lib/rdukit"), "rdukit-state")])
    pod = make_pod(spec, "rdukit-play", rules)
    container = pod["spec"]["containers"][0]
    port = free_port()
    container["ports"][0]["hostPort"] = port
    # podman's liveness checks need systemd; a claim's subPath is not known to it.
    for key in ("readinessProbe", "livenessProbe", "startupProbe"):
        del container[key]
    for mount in container["volumeMounts"]:
        if mount.pop("subPath", None):
            mount["mountPath"] = "/var/lib/rdukit"
    claim = {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "rdukit-state"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }  # fmt: skip
    file = tmp_path / "pod.yaml"
    file.write_text(yaml.safe_dump_all([claim, pod]))
    try:
        run("podman", "play", "kube", str(file), environment=podman_environment)
        wait_ready(f"http://127.0.0.1:{port}")
        assert httpx.get(f"http://127.0.0.1:{port}/v1/describe", timeout=30).json()["name"] == "logreg"
        (shown,) = json.loads(run("podman", "inspect", "rdukit-play-box", environment=podman_environment))
        assert shown["HostConfig"]["ReadonlyRootfs"] is True
        assert shown["HostConfig"]["Memory"] == 2 << 30
        assert shown["Config"]["User"].startswith("10001")
    finally:
        run("podman", "play", "kube", "--down", str(file), environment=podman_environment)
        run("podman", "volume", "rm", "--force", "rdukit-state", environment=podman_environment)


@pytest.fixture(scope="module")
def registry(docker_registry: str, layout: Path) -> Iterator[str]:
    """Debian's docker-registry on a free loopback port; what it gets lies beside the layout."""
    folder = layout.with_name("registry")
    folder.mkdir()
    port = free_port()
    settings = {
        "version": "0.1",
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": f"127.0.0.1:{port}"},
    }
    (folder / "config.yml").write_text(yaml.safe_dump(settings))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([docker_registry, "serve", str(folder / "config.yml")], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                if httpx.get(f"http://127.0.0.1:{port}/v2/", timeout=5).status_code == 200:
                    break
            except httpx.HTTPError:
                pass
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.05)
        yield f"127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(10)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.usefixtures("docker_registry")
def test_a_registry_gets_a_layout_and_takes_no_blob_twice(layout: Path, registry: str) -> None:
    first = push_image(layout, "logreg", f"docker://{registry}/boxes/digits:1", is_plain_http=True)
    assert (first.sent, first.known) == (7, 0)
    again = push_image(layout, "ffn", f"docker://{registry}/boxes/digits:2", is_plain_http=True)
    assert (again.sent, again.known) == (2, 5), "the base's layers are there already"
    accepted = "application/vnd.oci.image.manifest.v1+json"
    got = httpx.get(f"http://{registry}/v2/boxes/digits/manifests/1", headers={"Accept": accepted})
    assert got.headers["docker-content-digest"] == first.digest
    if skopeo := shutil.which("skopeo"):
        told = json.loads(run(skopeo, "inspect", "--tls-verify=false", f"docker://{registry}/boxes/digits:2"))
        assert told["Labels"]["dev.rdukit.box.name"] == "ffn"


def test_the_dockerfiles_are_clean_for_hadolint(tmp_path: Path, need: Callable[[str], str]) -> None:
    hadolint = need("hadolint")
    (tmp_path / "Dockerfile").write_text(make_dockerfile(read_contents("logreg"), "rdukit/modelbox:latest"))
    files = [str(TREE / folder / "Dockerfile") for folder in ("modelboxes", "platform", "runtime")]
    run(hadolint, *files, str(tmp_path / "Dockerfile"))
