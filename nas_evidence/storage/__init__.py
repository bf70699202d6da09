"""How a study is stored: folder, who works on it, log, files behind a URI."""

#: The winner beside simple models, as the report keeps it in the study folder.
COMPARISON = "report/comparison.json"
