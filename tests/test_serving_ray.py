"""On a local Ray: the application starts and answers."""

import os
import socket

import httpx
import pytest

import saccade

# Ray gives up on its proxy after five seconds, which it may need on a busy machine only to start.
os.environ.setdefault("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "50")

ray = pytest.importorskip("ray")
pytest.importorskip("ray.serve")


def test_a_replica_answers_as_the_translator_does(trained):
    from ray import serve

    from saccade.serving.ray_app import build

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        serve.start(http_options={"port": port}, proxy_location="HeadOnly")
        serve.run(build({"folder": str(trained), "cpus": "1", "engine": "torch"}))
        url = f"http://127.0.0.1:{port}"
        answer = httpx.post(f"{url}/v1/translate", json={"text": "January 5, 2021"}, timeout=60)
        assert answer.status_code == 200, answer.text
        said = answer.json()["results"][0]["translations"][0]["text"]
        assert said == saccade.load(trained, "cpu").translate("January 5, 2021").text
        assert httpx.get(f"{url}/health").json()["ready"] is True
        assert httpx.post(f"{url}/v1/translate", json={"text": "Monday", "model": "none"}).status_code == 404
    finally:
        serve.shutdown()
        ray.shutdown()


def test_an_argument_that_is_not_known_is_named():
    from saccade.serving.ray_app import build

    with pytest.raises(saccade.SaccadeError, match="folders: give folder, replicas"):
        build({"folders": "x"})
