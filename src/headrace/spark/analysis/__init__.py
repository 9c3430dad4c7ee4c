"""Analysis of a program's calls: what each means for topics, stores and operators, and what is refused."""
