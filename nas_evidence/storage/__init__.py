"""How a study is stored: folder, who works on it, log, files behind a URI."""

#: The winner beside simple models, as the report keeps it in the study folder.
COMPARISON = "report/comparison.json"

import logging

# Python would print each line of the log that nobody asked for, with a traceback.
logging.getLogger("nas_evidence").addHandler(logging.NullHandler())
