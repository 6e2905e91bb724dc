"""Messages between server and SuperNodes, and the registry of connected SuperNodes.

Only five modules pack and read the content of messages: `requests` and `replies` (training and
evaluation), `hello` (who a SuperNode is), `questions` (what a method asks clients) and `steps` (of
secure sums). They share `arrays` and `checks`. `grid`, `nodes` and `exchange` send messages and
wait for replies without looking into them.
"""
