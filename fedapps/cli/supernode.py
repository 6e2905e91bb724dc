"""Start a device with data of its own: Flower's SuperNode, which answers sooner here."""

import sys
from collections.abc import Sequence

NODE_CONFIG = "--node-config"
HELP = """\
usage: fedapps supernode OPTIONS   (the options of flower-supernode)

Start a device with data of its own: a SuperNode of Flower's that answers sooner, and that ends when
it has lost its SuperLink for good, so that a supervisor can start it again.

the options that a device needs:
  --superlink HOST:PORT          the SuperLink, or the proxy before it
  --root-certificates FILE       of the authority that signed its certificate (--insecure: none)
  --auth-supernode-private-key FILE
                                 the device's own key
  --node-config KEYS             'client-id=7 data="/path/train.npz" state-dir="/var/lib/fedapps"'

examples:
  fedapps supernode --insecure --superlink 127.0.0.1:8000 \\
    --node-config 'client-id=0 data="/data/a.npz" state-dir="/tmp/device-0"'

`flower-supernode --help` lists all options; deploy/README.md walks through three devices.\
"""


def hand_on(words: Sequence[str]) -> int:
    """Run a SuperNode with these options; it ends its process itself.

    Texts of a node-config may be without quotes, which Flower asks for.
    """
    if not words or words[0] in ("-h", "--help"):
        print(HELP)
        return 0
    from fedapps.device.supernode import main

    sys.argv = ["flower-supernode", *_with_quotes(words)]
    main()
    return 0


def _with_quotes(words: Sequence[str]) -> list[str]:
    from fedapps.core.options import quoted

    found = []
    for before, word in zip(["", *words], words, strict=False):
        name, _, text = word.partition("=")
        if before == NODE_CONFIG:
            found.append(quoted(word))
        else:
            found.append(f"{name}={quoted(text)}" if name == NODE_CONFIG and text else word)
    return found
