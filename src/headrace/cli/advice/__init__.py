"""What `headrace advise` knows: a client configuration and a described situation in, findings with reasons out.

`given_configuration` reads, the three modules of rules judge, `advise` runs them in order, `corrected_file` writes,
`templates` hands out what the rules have nothing against. Pure but for the reading and writing of files.
"""
