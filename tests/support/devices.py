"""Node-configs of devices on the serial engine."""


def node_configs(data, folder):
    """Return the node-configs of devices with these data; `folder` has a state folder for each."""
    return [
        {"client-id": client, "data": str(path), "state-dir": str(folder / f"state-{client}")}
        for client, path in enumerate(data)
    ]
