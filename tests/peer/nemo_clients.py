"""Run by a Python that has nemo-microservices and huggingface_hub: the adapter's sequence, asked by the real clients.

Reads what the adapter was given from standard input; whatever it asks, the server of the test records.
"""

import json
import os
import sys

os.environ |= {
    "HF_HUB_DISABLE_XET": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_OFFLINE": "0",
}

import huggingface_hub
import nemo_microservices
from huggingface_hub import CommitOperationAdd, HfApi

given = json.load(sys.stdin)
namespace, repo, job = given["namespace"], given["repo"], given["job"]
client = nemo_microservices.NeMoMicroservices(
    base_url=given["url"], max_retries=0, default_headers={"Authorization": f"Bearer {given['api_key']}"}
)
pages = {"page": 1, "page_size": 100, "sort": "-created_at"}

client.customization.configs.list(**pages)
client.namespaces.create(id=namespace, description=f"nat-finetune namespace: {namespace}")

api = HfApi(endpoint=f"{given['url']}/v1/hf", token=given["hf_token"])
client._client.post(  # no client has a method for it: NAT posts it with requests
    f"{given['url']}/v1/datastore/namespaces",
    data={"namespace": namespace},
    headers={"Authorization": f"Bearer {given['hf_token']}", "Accept": "*/*"},
)
api.create_repo(repo, repo_type="dataset", exist_ok=True)
files = [CommitOperationAdd(path, place) for path, place in given["files"]]
commit = api.create_commit(repo, files, commit_message=given["summary"], repo_type="dataset")
client.datasets.create(
    name=repo.split("/")[1],
    namespace=namespace,
    files_url=f"hf://datasets/{repo}",
    description=given["description"],
    custom_fields={**given["fields"], "revision": commit.oid},
)
client.customization.jobs.list(filter={"namespace": namespace}, **pages)
made = client.customization.jobs.create(**job)
while client.customization.jobs.status(made.id).status != "completed":
    pass
client.customization.jobs.container_logs(made.id)
done = client.customization.jobs.retrieve(made.id)
client.deployment.configs.create(**{**given["deployment_config"], "model": done.output_model})
client.deployment.model_deployments.create(**given["deployment"])
while True:
    found = client.deployment.model_deployments.retrieve(given["deployment"]["name"], namespace=namespace)
    if found.status_details.status == "ready":
        break
files = [CommitOperationAdd(path, place) for path, place in given["files"]]
api.create_commit(repo, files, commit_message="again", repo_type="dataset")  # nothing new: no commit, the newest revision
second = client.customization.jobs.create(**{**job, "name": "second"})
client.customization.jobs.cancel(second.id)
versions = {"nemo-microservices": nemo_microservices.__version__, "huggingface_hub": huggingface_hub.__version__}
print(json.dumps(versions))
