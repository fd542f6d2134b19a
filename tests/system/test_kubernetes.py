"""The Kubernetes manifests, checked against the schemas of Kubernetes and of the Dask operator.

The schemas come with the packages kubernetes-validate and dask-kubernetes; of the latter only files are read, so that
`pip install --no-deps dask-kubernetes` is enough here.
"""

import ast
import copy
import importlib.util
import re
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml
from kubernetes_validate.utils import all_versions, major_minor

from dasrel.cli.app import run
from dasrel.engine.cluster_settings import parsed_cluster
from dasrel.engine.launch import kubernetes_arguments
from dasrel.engine.runtime import environment
from dasrel.workflow.schema import read_workflow

FOLDER = Path(__file__).parents[2] / "workflows" / "kubernetes"
# The first version whose podFailurePolicy is beyond beta, and the newest that there is a schema of.
VERSIONS = ["1.31", major_minor(all_versions()[-1])]
FOUND = importlib.util.find_spec("dask_kubernetes")
OPERATOR = Path((FOUND.submodule_search_locations or [""])[0]) / "operator" if FOUND else Path()
needs_operator = pytest.mark.skipif(FOUND is None, reason="the package dask-kubernetes is not installed")


def documents(name):
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def kustomization():
    return documents("kustomization.yaml")[0]


def resources():
    return [document for name in kustomization()["resources"] for document in documents(name)]


def one(kind):
    (found,) = [document for document in resources() if document["kind"] == kind]
    return found


def job():
    return one("CronJob")["spec"]["jobTemplate"]["spec"]


def pod():
    return job()["template"]["spec"]


def cluster():
    return documents("cluster.yaml")[0]


def cluster_schema():
    """The operator's schema, made as strict as `kubectl apply --validate=strict`: unknown fields are errors."""
    path = OPERATOR / "deployment" / "helm" / "dask-kubernetes-operator" / "crds" / "daskcluster.yaml"
    (version,) = yaml.safe_load(path.read_text())["spec"]["versions"]
    assert version["name"] == "v1"

    def strict(node):
        if isinstance(node, dict):
            if isinstance(node.get("properties"), dict) and not node.get("x-kubernetes-preserve-unknown-fields"):
                node.setdefault("additionalProperties", False)
            for value in node.values():
                strict(value)
        elif isinstance(node, list):
            for value in node:
                strict(value)

    schema = version["schema"]["openAPIV3Schema"]
    schema["properties"] |= {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {}}
    strict(schema)
    return schema


@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_are_what_kubernetes_takes(version):
    for document in resources():
        kubernetes_validate.validate(document, version, strict=True)
    assert {document["kind"] for document in resources()} == {
        *("ServiceAccount", "Role", "RoleBinding", "NetworkPolicy", "PersistentVolumeClaim", "CronJob"),
    }


def broken(path, value):
    """The CronJob with one value changed, or taken away."""
    document = copy.deepcopy(one("CronJob"))
    *way, last = path
    at = document
    for step in way:
        at = at[step]
    if value is None:
        del at[last]
    else:
        at[last] = value
    return document


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["spec", "schedul"], "0 2 * * *"),
        (["spec", "schedule"], None),
        (["spec", "jobTemplate", "spec", "template", "spec", "terminationGracePeriodSeconds"], "long"),
        (["spec", "jobTemplate", "spec", "template", "spec", "containers", 0, "resource"], {}),
        (["spec", "jobTemplate", "spec", "podFailurePolicy", "rules", 0, "onExitCodes", "values"], ["75"]),
        (["spec", "jobTemplate", "spec", "podFailurePolicy", "rules", 0, "action"], None),
    ],
)
def test_a_broken_manifest_is_refused(path, value):
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken(path, value), VERSIONS[-1], strict=True)


@needs_operator
def test_the_cluster_is_what_the_operator_takes():
    schema = cluster_schema()
    jsonschema.Draft202012Validator(schema).validate(cluster())
    for path, value in (
        (["spec", "worker", "replicas"], "4"),
        (["spec", "worker", "spec", "containers"], None),
        (["spec", "worker", "spec", "containers", 0, "imagee"], "x"),
        (["spec", "scheduler"], None),
        (["spec", "idleTimeOut"], 3),
    ):
        document = cluster()
        *way, last = path
        at = document
        for step in way:
            at = at[step]
        if value is None:
            del at[last]
        else:
            at[last] = value
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft202012Validator(schema).validate(document)


@pytest.mark.parametrize("version", VERSIONS)
def test_pods_and_service_of_the_cluster_are_what_kubernetes_takes(version):
    """The operator's schema was made from one version of Kubernetes; here is what it makes of ours, in the others."""
    spec = cluster()["spec"]
    for role in ("worker", "scheduler"):
        labels = {"dask.org/cluster-name": cluster()["metadata"]["name"], "dask.org/component": role}
        made = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": role, "labels": labels}}
        kubernetes_validate.validate({**made, "spec": spec[role]["spec"]}, version, strict=True)
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": spec["scheduler"]["service"]}
    kubernetes_validate.validate(service, version, strict=True)
    assert spec["scheduler"]["service"]["selector"] == labels
    names = {port["name"] for port in spec["scheduler"]["spec"]["containers"][0]["ports"]}
    assert {port["targetPort"] for port in spec["scheduler"]["service"]["ports"]} == names


def test_names_fit_together():
    """What the parts call each other: no schema knows that."""
    binding, account = one("RoleBinding"), one("ServiceAccount")["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account}]
    assert binding["roleRef"]["name"] == one("Role")["metadata"]["name"]
    assert pod()["serviceAccountName"] == account
    config = {entry["name"]: entry["files"] for entry in kustomization()["configMapGenerator"]}
    claim = one("PersistentVolumeClaim")["metadata"]["name"]
    spec = cluster()["spec"]
    for one_pod in (pod(), spec["worker"]["spec"], spec["scheduler"]["spec"]):
        volumes = {volume["name"]: volume for volume in one_pod["volumes"]}
        mounts = [mount["name"] for container in one_pod["containers"] for mount in container["volumeMounts"]]
        assert sorted(volumes) == sorted(mounts)
        if "data" in volumes:
            assert volumes["data"]["persistentVolumeClaim"]["claimName"] == claim
        if "config" in volumes:
            assert volumes["config"]["configMap"]["name"] in config
    (container,) = pod()["containers"]
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    files = {f"{mounted['config']}/{file}" for file in config["dasrel"]}
    given = {entry["name"]: entry["value"] for entry in container["env"]}
    assert container["args"][:2] == ["run", "/config/workflow.toml"]
    assert container["args"][1] in files
    kind, settings = parsed_cluster(given["DASREL_DASK"])
    assert (kind, settings["spec"] in files) == ("kubernetes", True)
    assert environment(given).workers <= spec["worker"]["replicas"]
    # The same labels, so that the network policy holds for all pods.
    wanted = one("NetworkPolicy")["spec"]["podSelector"]["matchLabels"]
    for metadata in (job()["template"]["metadata"], spec["worker"]["metadata"], spec["scheduler"]["metadata"]):
        assert wanted.items() <= metadata["labels"].items()
    images = {c["image"] for p in (pod(), spec["worker"]["spec"], spec["scheduler"]["spec"]) for c in p["containers"]}
    assert len(images) == 1


def test_the_workflow_is_one(tmp_path):
    """With its paths as they are in the pod, on the volume."""
    workflow = read_workflow(FOLDER / "workflow.toml")
    (mount,) = [m["mountPath"] for m in pod()["containers"][0]["volumeMounts"] if m["name"] == "data"]
    assert str(workflow.out).startswith(f"{mount}/")
    assert all(str(f).startswith(f"{mount}/") for step in workflow.steps.values() for f in step.files.values())


def test_the_command_line_is_one(capsys):
    """As the container runs it; all that is missing here is the file."""
    arguments = pod()["containers"][0]["args"]
    assert run(arguments) in (1, 2)
    assert "cannot read the workflow /config/workflow.toml" in capsys.readouterr().err


def test_a_run_that_is_stopped_goes_on():
    rules = job()["podFailurePolicy"]["rules"]
    actions = {
        code: rule["action"] for rule in rules if "onExitCodes" in rule for code in rule["onExitCodes"]["values"]
    }
    assert actions == {75: "Ignore", 143: "Ignore", 2: "FailJob", 3: "FailJob"}
    assert {r["onExitCodes"]["containerName"] for r in rules if "onExitCodes" in r} == {pod()["containers"][0]["name"]}
    assert pod()["restartPolicy"] == "Never"  # else a podFailurePolicy is refused
    assert pod()["terminationGracePeriodSeconds"] >= 120
    assert one("CronJob")["spec"]["concurrencyPolicy"] == "Forbid"


def test_pods_are_confined():
    spec = cluster()["spec"]
    for one_pod in (pod(), spec["worker"]["spec"], spec["scheduler"]["spec"]):
        assert one_pod["securityContext"]["runAsNonRoot"] is True
        for container in one_pod["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert "memory" in container["resources"]["limits"]
            assert all("hostPort" not in port for port in container.get("ports", []))
    assert "ports" not in pod()["containers"][0]
    assert spec["scheduler"]["service"]["type"] == "ClusterIP"
    for document in resources():
        assert document["kind"] not in ("Service", "Ingress", "ClusterRole", "ClusterRoleBinding")
    for rule in one("Role")["rules"]:
        assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]


@needs_operator
def test_what_dasrel_asks_of_the_operator_is_there():
    """Read from the source: importing it would need the whole Kubernetes client."""
    tree = ast.parse((OPERATOR / "kubecluster" / "kubecluster.py").read_text())
    (made,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "KubeCluster"]
    (init,) = [node for node in made.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    takes = {argument.arg for argument in init.args.kwonlyargs}
    requested = "kubernetes:image=lab/dasrel,workers=3,memory=4GiB,cpus=2,namespace=lab,name=night"
    assert set(kubernetes_arguments(parsed_cluster(requested)[1])) <= takes
    assert set(kubernetes_arguments({"spec": "cluster.yaml"})) <= takes


def test_the_image_is_not_root_and_knows_the_extra():
    text = (FOLDER / "Dockerfile").read_text()
    assert re.search(r"^USER 1000", text, re.MULTILINE)
    assert "[kubernetes" in text
    assert pod()["securityContext"]["runAsUser"] == 1000
