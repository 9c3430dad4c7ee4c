"""Rules of `headrace advise`: from a client configuration and a described situation to findings with reasons.

`given_configuration` reads and rewrites files, the modules of rules judge, `advise` runs them in order and prints. Pure
except for files.
"""
