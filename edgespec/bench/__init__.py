"""`edgespec bench`: plain decoding, edgespec and other engines (peers) on the same questions, in one run.

suites              questions, in the formats of Spec-Bench and MT-bench
contender           the protocol of what is compared: it answers a prompt and reports when tokens came
edgespec_contender  edgespec with and without speculation
peers/              other engines, used through their public interfaces
runner              the order of the answers, and the handling of failures
records             the data of a run, and its JSON
journal             the answers of a run on disk, so that it can be resumed
scopes              subsets of the answers: a category, free answers, replayed ones
speedups            speedups and their confidence intervals
figures             rates, latencies, acceptance
report/             the report in JSON, Markdown and HTML
"""
