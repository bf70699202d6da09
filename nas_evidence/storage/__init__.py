"""How a study is stored: folder, lock and lease, log, files behind a URI."""

#: The winner beside simple models, as the report keeps it in the study folder.
COMPARISON = "report/comparison.json"
