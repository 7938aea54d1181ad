"""The documented way to trust a project works in the real Gemini CLI."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .clients import Gemini
from .conftest import Start
from .models import Call
from .test_seven_steps import write_client_config

# the first test may download the client
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(300),
]


@pytest.mark.parametrize("kind", [Gemini], indirect=True, ids=["gemini"])
@pytest.mark.parametrize("trusted", [True, False], ids=["trusted", "not trusted"])
def test_project_config_requires_a_trusted_folder(
    start: Start, installed_project: Path, trusted: bool
) -> None:
    write_client_config(installed_project, "gemini")
    script = [Call("list_notebooks", {}), "Done."] if trusted else ["Done."]
    client = start(installed_project, "{}", *script)
    settings = client.home / client.settings
    data = json.loads(settings.read_text())
    data["security"]["folderTrust"]["enabled"] = True
    settings.write_text(json.dumps(data))
    folder = installed_project if trusted else installed_project / "elsewhere"
    trust = {str(folder): "TRUST_FOLDER"}
    settings.with_name("trustedFolders.json").write_text(json.dumps(trust))

    client.prompt("Work in a notebook.")

    if trusted:
        assert "There is no notebook yet" in client.model.results[0].text
    else:
        assert client.model.requests == []  # no request offered stepper's tools
