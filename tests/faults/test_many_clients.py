"""What a hub does for a message does not grow with the number of its clients."""

import sys

from lab import Lab, prepared


def lines_for_a_message(folder, clients):
    """How many lines of the package a hub runs for a client's block, when several others are missing."""
    silos = [{"name": "lab", "clients": clients}, {"name": "clinic", "clients": 1}]
    lab = Lab(*prepared(silos=silos), folder, seed=0).begin()
    driver, count = lab.drivers["hub.lab"], 0
    lab.until(lambda: driver.hub.phase == "stepping" and driver.hub.round == 2)

    def trace(frame, event, argument):
        nonlocal count
        is_ours = "/src/tdcd/" in frame.f_code.co_filename
        count += event == "line" and is_ours
        return trace if is_ours else None

    lab.until(lambda: any(lab.queues[client, "hub.lab"] for client in lab.job.clients(0)))
    client = next(client for client in lab.job.clients(0) if lab.queues[client, "hub.lab"])
    driver.endpoint.transport.news.append(lab.queues[client, "hub.lab"].popleft())
    sys.settrace(trace)
    try:
        driver.step()
    finally:
        sys.settrace(None)
    assert client not in driver.hub.missing()
    driver.folder.close()
    return count


def test_work_for_a_message_does_not_grow_with_the_clients(tmp_path):
    few, many = (lines_for_a_message(tmp_path / str(clients), clients) for clients in (4, 24))
    assert many <= few + 5
