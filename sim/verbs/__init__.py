"""The verbs of the command line as data: what each takes, refuses and prints as its help.

``moelab VERB`` and ``python -m MODULE`` read the same table (`sim.verbs.table`). It is the only
place where the options of a command are told. Nothing here imports more than Python's own library
before a word has to be checked against a file of ``conf/``.
"""
