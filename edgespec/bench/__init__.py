"""`edgespec bench`: plain decoding, edgespec and its peers on the same questions, in one run.

suites       questions, read from the formats that the field uses
contender    what is compared: something that answers a prompt and tells when tokens came
own, peers/  edgespec with and without speculation; other engines, driven as their users drive them
running      who answers what, in which order; what went wrong
records      an answer in figures, and the JSON they are kept as
scopes       which answers a figure is of: a category, free answers, replayed ones
speedups     ratios, and their intervals
figures      rates, latencies, acceptance
report/      JSON, Markdown, HTML
"""
