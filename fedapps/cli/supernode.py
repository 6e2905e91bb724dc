"""Start a device with its own data: Flower's SuperNode, but it hears of messages sooner."""

import sys
from collections.abc import Sequence

HELP = """\
usage: fedapps supernode OPTIONS   (the options of flower-supernode)

Start a device with its own data. The device runs a SuperNode, as with flower-supernode, but hears
of messages sooner. When it has lost the SuperLink for good, it ends, so that a supervisor can
start it again.

options that a device needs:
  --superlink HOST:PORT          address of the SuperLink, or of the proxy in front of it
  --root-certificates FILE       certificate of the CA that signed the server's certificate
                                 (or --insecure, for a connection without TLS)
  --auth-supernode-private-key FILE
                                 the device's own key
  --node-config KEYS             'client-id=7 data="/path/train.npz" state-dir="/var/lib/fedapps"'

option that flower-supernode does not have:
  --metrics-port PORT            serve figures to Prometheus at http://127.0.0.1:PORT/metrics

examples:
  fedapps supernode --insecure --superlink 127.0.0.1:8000 \\
    --node-config 'client-id=0 data="/data/a.npz" state-dir="/tmp/device-0"'

`flower-supernode --help` lists all options. deploy/README.md sets up three devices step by step.\
"""


def hand_on(words: Sequence[str]) -> int:
    """Run a SuperNode with these options; it ends its process itself.

    Raises `RunError` if the node-config of a device lacks a key, has one that nobody knows, or a
    value that cannot be.
    """
    if not words or words[0] in ("-h", "--help"):
        print(HELP)
        return 0
    from fedapps.device.supernode import main

    sys.argv = ["flower-supernode", *words]
    main()
    return 0
