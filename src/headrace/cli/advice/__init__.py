"""Rules of `headrace advise`: from a client configuration and a described situation to findings with reasons.

`given_configuration` reads, the three modules of rules judge, `advise` runs them in order, `corrected_file` writes,
`templates` hands out what the rules have nothing against. Pure but for the reading and writing of files.
"""
