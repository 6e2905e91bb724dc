"""Messages between server and SuperNodes, and the registry of connected SuperNodes.

Only four modules pack and read the content of messages: `requests` and `replies` (training and
evaluation), `hello` (who a SuperNode is) and `questions` (what a method asks clients). They share
`arrays` and `checks`. `grid`, `nodes` and `exchange` send messages and wait for replies without
looking into them.
"""
